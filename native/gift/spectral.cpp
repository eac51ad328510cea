#include "gift/spectral.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fp_env.h"
#include "base/hash.h"
#include "codec/block_codec.h"
#include "collective/plan.h"
#include "gift/bytes.h"
#include "gift/rows.h"

namespace gcomm::gift {
namespace {

// Rounds of subspace iteration: from nothing, and where the last basis is a good start.
constexpr int kColdRounds = 3;
constexpr int kWarmRounds = 2;
// mode=rows: of the energy, what is spread over all directions at least, some steps after the basis.
constexpr double kRowDrift = 0.01;
constexpr std::size_t kLanes = 16;     // of the widest instruction set
constexpr std::size_t kMostRank = 64;  // where the codec leaves the choice open
constexpr std::size_t kLeastSide = 8;  // a matrix with fewer rows or columns goes direct

std::shared_ptr<const codec::BlockCodec> side_codec(const codec::GiftSpec& gift, codec::Isa isa) {
  codec::CodecSpec spec = codec::parse_spec("int8");
  if (gift.side >= 0) spec.format = gift.side;
  return codec::BlockCodec::make(spec, isa);
}

// The format of the rest, without what only a call gives it.
std::shared_ptr<const codec::BlockCodec> plain_codec(codec::CodecSpec spec, codec::Isa isa) {
  spec.gift = codec::GiftSpec();
  spec.error_feedback = false;
  return codec::BlockCodec::make(spec, isa);
}

std::unique_ptr<Basis> make_basis(const codec::GiftSpec& gift, std::uint64_t rows, std::uint64_t cols) {
  if (!SpectralKey::has_basis(rows, cols)) return nullptr;
  const std::uint64_t least = std::min(rows, cols);
  const std::uint64_t most = gift.rank > 0 ? static_cast<std::uint64_t>(gift.rank) : kMostRank;
  return std::make_unique<Basis>(rows, cols, std::min(most, gift.rank > 0 ? least - 1 : least / 2));
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

}  // namespace

SpectralKey::SpectralKey(const codec::CodecSpec& spec, codec::Isa isa, std::uint64_t rows, std::uint64_t cols)
    : spec_(spec),
      isa_(isa),
      rows_(rows),
      cols_(cols),
      block_(plain_codec(spec, isa)),
      side_block_(side_codec(spec.gift, isa)),
      block_error_(format_error(*block_)),
      side_error_(format_error(*side_block_)),
      basis_(make_basis(spec.gift, rows, cols)) {
  choice_.why = basis_ == nullptr ? "a matrix with fewer than 8 rows or columns" : "no reference yet";
}

bool SpectralKey::has_basis(std::uint64_t rows, std::uint64_t cols) {
  return std::min(rows, cols) >= kLeastSide;
}

collective::KeyTransform::Path SpectralKey::path() const {
  switch (choice_.way) {
    case Choice::Way::kDirect:
      return Path::kDirect;
    case Choice::Way::kScale:
      return Path::kWhole;
    case Choice::Way::kSplit:
      return Path::kSplit;
    case Choice::Way::kRows:
      return Path::kCoded;
  }
  return Path::kDirect;
}

collective::KeyTransform::Side SpectralKey::side(std::size_t index) const {
  const SideMemory& memory = index == 0 ? p_ : s_;
  Side side;
  side.block = side_block_.get();
  side.count = memory.input.size();
  side.input = memory.input.data();
  side.output = const_cast<float*>(memory.output.data());
  side.wire = memory.wire.data();
  return side;
}

void SpectralKey::choose_way() {
  const Spectrum spectrum{rows_, cols_, basis_->singular_values(), basis_->squared_norm()};
  choice_ = choose(spectrum, spec_.gift, *block_, *side_block_, block_error_, side_error_, isa_);
  if (choice_.way != Choice::Way::kDirect) adopt();
  Fnv64 hash;
  hash.number(basis_->digest()).number(static_cast<std::uint64_t>(choice_.way)).number(choice_.rank);
  digest_ = hash.value();
}

void SpectralKey::adopt() {
  coordinates_.set(*basis_, choice_.rank, spec_.gift.alpha_eighths);
  if (choice_.way == Choice::Way::kRows) {
    if (row_codec_ == nullptr || row_codec_->rank() != choice_.rank) {
      row_codec_ = std::make_unique<RowCodec>(spec_, isa_, block_, cols_, choice_.rank);
    }
    const double drift =
        std::sqrt(kRowDrift * basis_->squared_norm() / static_cast<double>(std::min(rows_, cols_)));
    row_codec_->set_basis(coordinates_.v(), basis_->singular_values(), drift, rows_);
    return;
  }
  out_ = back_ = coordinates_.make_update();
  if (scales()) return;
  for (SideMemory* side : {&p_, &s_}) {
    const std::size_t count = choice_.rank * (side == &p_ ? cols_ : rows_);
    side->input.assign(count, 0.0f);
    side->output.assign(count, 0.0f);
    side->wire.assign(side_block_->max_encoded_bytes(count), 0);
  }
}

// Keeps what was sent, and leaves in input what it is read as.
void SpectralKey::encode_side(SideMemory& side) const {
  codec::EncodeJob job;
  job.src = side.input.data();
  job.count = side.input.size();
  job.dst = side.wire.data();
  job.capacity = side.wire.size();
  const std::size_t bytes = side_block_->encode(job).bytes;
  side_block_->decode({side.wire.data(), bytes}, side.input.data(), DType::kF32, job.count);
}

void SpectralKey::prepare(const void* input, DType dtype, const float* residual, bool zero) {
  const FpEnvironment environment;
  for (Arrival& arrival : arrivals_) arrival.left.clear();  // a call that failed may have left something
  MatrixView g;
  g.data = input;
  g.dtype = dtype;
  g.rows = rows_;
  g.cols = cols_;
  g.addend = scales() ? nullptr : residual;  // a residual of scaled coordinates is added there
  g.zero_nonfinite = zero;
  coordinates_.project(g, isa_);
  if (!zero && !coordinates_.finite()) {
    // A NaN or an Inf stays where it is, instead of spreading over its row and column.
    g.zero_nonfinite = true;
    coordinates_.project(g, isa_);
  }
  if (scales()) {
    coordinates_.damping_update(out_);
    return;
  }
  std::vector<float>& left = coordinates_.left();
  std::vector<float>& right = coordinates_.right();
  if (!coordinates_.within(kMostCoordinate)) {
    // Everything stays in the rest.
    std::fill(left.begin(), left.end(), 0.0f);
    std::fill(right.begin(), right.end(), 0.0f);
  }
  const std::size_t rank = choice_.rank;
  const std::size_t width = coordinates_.width();
  const std::size_t terms = out_.terms;
  const float* u = coordinates_.u();
  std::copy(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(rank * cols_), p_.input.begin());
  encode_side(p_);
  // S = G V - U (P V), with the P that is sent.
  const std::vector<double>& core = coordinates_.core(p_.input.data());
  for (std::size_t i = 0; i < rows_; ++i) {
    for (std::size_t c = 0; c < rank; ++c) {
      double sum = right[i * width + c];
      for (std::size_t k = 0; k < rank; ++k) sum -= double{u[i * width + k]} * core[k * rank + c];
      s_.input[c * rows_ + i] = static_cast<float>(sum);
    }
  }
  encode_side(s_);
  // The rest is G - U P - S V^T.
  for (std::size_t i = 0; i < rows_; ++i) {
    for (std::size_t k = 0; k < rank; ++k) {
      out_.l[i * terms + k] = -u[i * width + k];
      out_.l[i * terms + width + k] = -s_.input[k * rows_ + i];
    }
  }
  std::copy(p_.input.begin(), p_.input.end(), out_.r.begin());
}

void SpectralKey::sides_arrived() {
  const std::size_t terms = back_.terms;
  std::copy(p_.output.begin(), p_.output.end(), back_.r.begin());
  for (std::size_t i = 0; i < rows_; ++i) {
    for (std::size_t k = 0; k < choice_.rank; ++k)
      back_.l[i * terms + coordinates_.width() + k] = s_.output[k * rows_ + i];
  }
}

MatrixView SpectralKey::view_of_sum(const float* whole) const {
  MatrixView y;
  y.data = whole;
  y.rows = rows_;
  y.cols = cols_;
  y.zero_nonfinite = true;
  return y;
}

void SpectralKey::arrived(const float* whole, const Shard& shard, std::uint64_t end) {
  const auto owner = static_cast<std::size_t>(shard.owner);
  if (arrivals_.size() <= owner) arrivals_.resize(owner + 1);
  Arrival& arrival = arrivals_[owner];
  if (arrival.left.empty()) {
    arrival.left.assign(coordinates_.width() * cols_, 0.0f);
    arrival.first = arrival.next = (shard.begin + cols_ - 1) / cols_;
    arrival.last = shard.end / cols_;
  }
  // A few rows at a time, for the kernels' sake.
  constexpr std::uint64_t kAtOnce = 24;
  const std::uint64_t there = std::min(arrival.last, end / cols_);
  if (there < arrival.next + kAtOnce && there < arrival.last) return;
  if (there <= arrival.next) return;
  coordinates_.add_rows(view_of_sum(whole), arrival.next, there, arrival.left.data(), isa_);
  arrival.next = there;
}

void SpectralKey::finish(float* whole, void* output, DType dtype) {
  const FpEnvironment environment;
  // The shards' products in rank order, then the rows that lie in two shards or more.
  std::vector<float>& left = coordinates_.left();
  std::fill(left.begin(), left.end(), 0.0f);
  std::uint64_t row = 0;
  for (const Arrival& arrival : arrivals_) {
    for (std::size_t i = 0; i < arrival.left.size(); ++i) left[i] += arrival.left[i];
  }
  const MatrixView y = view_of_sum(whole);
  for (const Arrival& arrival : arrivals_) {
    if (arrival.left.empty() || arrival.first >= arrival.last) continue;
    coordinates_.add_rows(y, row, arrival.first, left.data(), isa_);
    row = arrival.last;
  }
  coordinates_.add_rows(y, row, rows_, left.data(), isa_);
  coordinates_.raising_update(back_);
  const codec::ElementDriver& elements = codec::need_driver(isa_).elements[codec::element_index(dtype)];
  constexpr std::uint64_t kAtOnce = 8 * codec::kTile;  // stays in the cache
  const std::uint64_t count = rows_ * cols_;
  for (std::uint64_t done = 0; done < count; done += kAtOnce) {
    const auto n = static_cast<std::size_t>(std::min(kAtOnce, count - done));
    inverse(done, n, whole + done);
    // The element loops read whole vectors, and whole may end where the caller's memory does.
    const std::size_t vectors = n / kLanes * kLanes;
    elements.overflow(whole + done, vectors);
    elements.store(whole + done, vectors, codec::element_at(output, dtype, done));
    if (vectors == n) continue;
    float last[kLanes] = {};
    std::copy(whole + done + vectors, whole + done + n, last);
    elements.overflow(last, kLanes);
    elements.store(last, n - vectors, codec::element_at(output, dtype, done + vectors));
  }
}

void SpectralKey::forward(std::uint64_t element, std::size_t count, float* x) const {
  out_.apply(element, count, cols_, x, isa_);
}

void SpectralKey::inverse(std::uint64_t element, std::size_t count, float* x) const {
  back_.apply(element, count, cols_, x, isa_);
}

void SpectralKey::weigh(float* residual, const Place& place, float factor) const {
  const std::size_t granule = choice_.way == Choice::Way::kRows ? row_codec_->granule() : codec::kTile;
  const std::uint64_t count = rows_ * cols_;
  const std::uint64_t shard = collective::shard_length(count, place.ranks, granule);
  const std::uint64_t begin = std::min(count, shard * static_cast<std::uint64_t>(place.rank));
  for (std::uint64_t i = begin; i < std::min(count, begin + shard); ++i) residual[i] *= factor;
}

void SpectralKey::weigh_as_input(float* residual, const Place& place) const {
  weigh(residual, place, place.divisor);
}

void SpectralKey::weigh_as_sum(float* residual, const Place& place) const {
  weigh(residual, place, 1.0f / place.divisor);
}

bool SpectralKey::learn(const void* reduced, DType dtype, bool owner) {
  const bool cold = basis_ != nullptr && basis_->rank() == 0;
  // The first basis comes from a sum that went direct, with all of that format's noise: the second call's is
  // better.
  const bool due = cold || calls_ == 1 || calls_ % static_cast<std::uint32_t>(spec_.gift.refresh) == 0;
  ++calls_;
  if (basis_ == nullptr || !due) return false;
  if (spec_.gift.broadcast_basis && !owner) return true;
  const FpEnvironment environment;
  MatrixView g;
  g.data = reduced;
  g.dtype = dtype;
  g.rows = rows_;
  g.cols = cols_;
  return basis_->update(g, cold ? kColdRounds : kWarmRounds, isa_) || spec_.gift.broadcast_basis;
}

std::size_t SpectralKey::shared_bytes() const {
  return spec_.gift.broadcast_basis && basis_ != nullptr ? basis_->saved_bytes() : 0;
}

void SpectralKey::settle(float* residual, const Place& place) {
  const FpEnvironment environment;
  if (residual != nullptr) {
    weigh_as_input(residual, place);
    if (scales()) coordinates_.raise(residual, out_, isa_);
  }
  choose_way();
  if (residual != nullptr) {
    if (scales()) coordinates_.damp(residual, out_, isa_);
    weigh_as_sum(residual, place);
  }
}

std::string SpectralKey::report() const {
  static constexpr const char* kWays[] = {"direct", "scale", "split", "rows"};
  std::string text = "{\"geometry\":\"spectral\",\"rows\":" + std::to_string(rows_) +
                     ",\"cols\":" + std::to_string(cols_) + ",\"path\":\"" +
                     kWays[static_cast<int>(choice_.way)] + "\",\"rank\":" + std::to_string(choice_.rank) +
                     ",\"calls\":" + std::to_string(calls_) + ",\"why\":\"" + choice_.why + "\"";
  if (basis_ != nullptr && basis_->rank() > 0) {
    text += ",\"predicted_error\":" + number(choice_.predicted) +
            ",\"direct_error\":" + number(choice_.direct) + ",\"bits\":" + number(choice_.bits) +
            ",\"direct_bits\":" + number(choice_.direct_bits);
  }
  return text + "}";
}

void SpectralKey::save(std::vector<std::uint8_t>& out) const {
  put(out, &calls_, 1);
  const std::uint32_t way = static_cast<std::uint32_t>(choice_.way);
  put(out, &way, 1);
  put(out, &choice_.rank, 1);
  if (basis_ == nullptr) return;
  std::vector<std::uint8_t> basis(basis_->saved_bytes());
  basis_->save(basis.data());
  put(out, basis.data(), basis.size());
}

void SpectralKey::load(const std::uint8_t* data, std::size_t bytes) {
  Fields in(data, bytes);
  std::uint32_t calls = 0;
  in.get(&calls, 1);
  std::uint32_t way = 0;
  in.get(&way, 1);
  std::uint32_t rank = 0;
  in.get(&rank, 1);
  std::unique_ptr<Basis> basis = make_basis(spec_.gift, rows_, cols_);
  if (basis != nullptr) basis->load(in.take(basis->saved_bytes()), basis->saved_bytes());
  in.done();
  basis_ = std::move(basis);
  calls_ = calls;
  choice_ = Choice();
  digest_ = 0;
  if (basis_ == nullptr || basis_->rank() == 0) return;
  choose_way();
  if (static_cast<std::uint32_t>(choice_.way) != way || choice_.rank != rank) Fields::broken();
}

}  // namespace gcomm::gift
