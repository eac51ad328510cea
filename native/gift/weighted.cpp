#include "gift/weighted.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/hash.h"
#include "gift/bytes.h"
#include "gift/rows.h"

namespace gcomm::gift {
namespace {

// Of the moments, what is kept when a new observation comes. Observations are a refresh apart.
constexpr double kDecay = 0.9;
// Fewer squares than these say little about the size of a single element: a value over one sample of itself is
// anything. The mean over a row or a column is good at once, where it has as many.
constexpr std::uint32_t kEnoughSquares = 8;
// The least weight against the root mean square: what never moved may start to.
constexpr double kLeastWeight = 0x1p-8;
// At first it is larger: what a coarse format has rounded to zero in the direct call need not be smaller than
// an eighth of the rest, and divided by 2^-8 it would drown what shares its blocks. Each observation, made with
// the weights before, sees eight times further down.
constexpr double kFirstWeight = 0x1p-3;
// A column whose share of the squares has grown by more than this since its weight was made drowns what shares
// its blocks: the weights are of another tensor than what comes now.
constexpr double kMisfit = 16;
constexpr std::size_t kBlock = 4096;  // elements at a time

// Sum of squares in eight interleaved sums, added up in a fixed order.
double sum_of_squares(const float* x, std::size_t count) {
  double lanes[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) lanes[k] += double{x[i + k]} * double{x[i + k]};
  }
  for (; i < count; ++i) lanes[i % 8] += double{x[i]} * double{x[i]};
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Multipliers out and back for weights relative to their mean. Out they are at most 1, so that nothing finite
// overflows on its way.
void multipliers(const double* weights, std::size_t count, double mean, double least_weight, float* out,
                 float* back) {
  const auto relative = [=](double weight) { return std::max(weight / mean, least_weight); };
  double least = relative(weights[0]);
  for (std::size_t i = 1; i < count; ++i) least = std::min(least, relative(weights[i]));
  for (std::size_t i = 0; i < count; ++i) {
    back[i] = static_cast<float>(relative(weights[i]) / least);
    out[i] = static_cast<float>(least / relative(weights[i]));
  }
}

double mean_of(const double* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

}  // namespace

WeightedKey::WeightedKey(const codec::CodecSpec& spec, std::uint64_t rows, std::uint64_t cols)
    : geometry_(spec.gift.geometry),
      refresh_(static_cast<std::uint32_t>(spec.gift.refresh)),
      rows_(rows),
      cols_(cols),
      factors_(rows + cols),
      scratch_(rows + cols) {
  if (!factored()) moments_.resize(rows * cols);
  const std::size_t weights = factored() ? rows + cols : std::max(rows * cols, rows + cols);
  out_.resize(weights);
  back_.resize(weights);
}

bool WeightedKey::by_element() const noexcept { return !factored() && observed_ >= kEnoughSquares; }

void WeightedKey::forward(std::uint64_t element, std::size_t count, float* x) const {
  multiply(out_, element, count, x);
}

void WeightedKey::inverse(std::uint64_t element, std::size_t count, float* x) const {
  multiply(back_, element, count, x);
}

void WeightedKey::multiply(const std::vector<float>& by, std::uint64_t element, std::size_t count,
                           float* x) const {
  if (of_elements_) {
    for (std::size_t i = 0; i < count; ++i) x[i] *= by[element + i];
    return;
  }
  for_each_row(element, count, cols_, x, [&](std::uint64_t row, std::uint64_t column, float* v, std::size_t n) {
    const float of_row = by[row];
    const float* of_column = by.data() + rows_ + column;
    for (std::size_t j = 0; j < n; ++j) v[j] = v[j] * of_row * of_column[j];
  });
}

// Squares of a part of the reduced tensor into sums by row and by column. A NaN or an Inf makes some of them
// so.
void WeightedKey::learn_part(const void* shard, DType dtype, std::uint64_t begin, std::uint64_t count,
                             double* part) {
  float block[kBlock];
  std::fill(part, part + rows_ + cols_, 0.0);
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t row = (begin + done) / cols_;
    const std::uint64_t column = (begin + done) % cols_;
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>({kBlock, cols_ - column, count - done}));
    load_elements(shard, dtype, done, n, block);
    part[row] += sum_of_squares(block, n);
    double* columns = part + rows_ + column;
    for (std::size_t j = 0; j < n; ++j) columns[j] += double{block[j]} * double{block[j]};
    done += n;
  }
}

bool WeightedKey::take_sums() {
  if (!std::all_of(scratch_.begin(), scratch_.end(), [](double sum) { return std::isfinite(sum); }))
    return false;
  if (learned_ && misfits()) {
    observed_ = 0;
    std::fill(moments_.begin(), moments_.end(), 0.0f);
    starts_anew_ = true;
    return false;
  }
  const double keep = kept();
  for (std::size_t i = 0; i < scratch_.size(); ++i) {
    const double mean = scratch_[i] / static_cast<double>(i < rows_ ? cols_ : rows_);
    factors_[i] = keep * factors_[i] + (1.0 - keep) * mean;
  }
  return true;
}

// Whether the sums in scratch_ are those of another tensor than the one that the weights were made for.
bool WeightedKey::misfits() const {
  if (rows_ < kEnoughSquares) return false;
  const double* now = scratch_.data() + rows_;
  const double* before = factors_.data() + rows_;
  const double mean_now = mean_of(now, cols_);
  const double mean_before = mean_of(before, cols_);
  const double least = least_weight();
  for (std::size_t j = 0; j < cols_; ++j) {
    if (now[j] / mean_now > kMisfit * std::max(before[j] / mean_before, least * least)) return true;
  }
  return false;
}

// Of the moments, when a new observation comes: the plain mean until the decaying one has seen as much.
double WeightedKey::kept() const {
  return std::min(kDecay, static_cast<double>(observed_) / (observed_ + 1.0));
}

double WeightedKey::least_weight() const { return std::max(kLeastWeight, std::pow(kFirstWeight, observed_)); }

bool WeightedKey::part_is_due() {
  // And after the first call that did not go direct: its sum is the better reference.
  const bool due = !learned_ || observed_ == 1 || calls_ % refresh_ == 0;
  ++calls_;
  return due;
}

bool WeightedKey::learn_parts(const double* parts, int ranks) {
  std::copy(parts, parts + scratch_.size(), scratch_.begin());
  for (int rank = 1; rank < ranks; ++rank) {
    const double* part = parts + static_cast<std::size_t>(rank) * scratch_.size();
    for (std::size_t i = 0; i < scratch_.size(); ++i) scratch_[i] += part[i];
  }
  if (!take_sums()) return starts_anew_;
  ++observed_;
  return true;
}

bool WeightedKey::observe(const void* reduced, DType dtype) {
  learn_part(reduced, dtype, 0, rows_ * cols_, scratch_.data());
  if (!take_sums()) return starts_anew_;
  if (!factored()) observe_elements(reduced, dtype);
  ++observed_;
  return true;
}

void WeightedKey::observe_elements(const void* reduced, DType dtype) {
  float block[kBlock];
  const std::uint64_t count = rows_ * cols_;
  const double keep = kept();
  for (std::uint64_t begin = 0; begin < count; begin += kBlock) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, count - begin));
    load_elements(reduced, dtype, begin, n, block);
    for (std::size_t i = 0; i < n; ++i) {
      const double before = moments_[begin + i];
      const double square = keep * before * before + (1.0 - keep) * double{block[i]} * double{block[i]};
      moments_[begin + i] = static_cast<float>(std::sqrt(square));
    }
  }
}

void WeightedKey::set_element_weights() {
  double square = 0;
  for (const float moment : moments_) square += double{moment} * double{moment};
  const double mean = std::sqrt(square / static_cast<double>(moments_.size()));
  if (mean == 0) return;
  double least = mean;
  for (const float moment : moments_) least = std::min(least, std::max(double{moment}, kLeastWeight * mean));
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const double weight = std::max(double{moments_[i]}, kLeastWeight * mean);
    back_[i] = static_cast<float>(weight / least);
    out_[i] = static_cast<float>(least / weight);
  }
  learned_ = of_elements_ = true;
}

bool WeightedKey::too_few() const noexcept {
  return std::min(rows_, cols_) < kEnoughSquares && observed_ < kEnoughSquares;
}

void WeightedKey::set_weights() {
  if (starts_anew_) {
    starts_anew_ = learned_ = of_elements_ = false;
    digest_ = 0;
  }
  if (observed_ == 0 || too_few()) return;
  if (by_element()) {
    set_element_weights();
  } else {
    // w_ij = sqrt(row_i column_j / mean), so each factor is a square root.
    for (std::size_t i = 0; i < factors_.size(); ++i) scratch_[i] = std::sqrt(factors_[i]);
    const double mean = std::sqrt(mean_of(factors_.data(), rows_));
    if (mean == 0) return;
    const double least = least_weight();
    multipliers(scratch_.data(), rows_, mean, least, out_.data(), back_.data());
    multipliers(scratch_.data() + rows_, cols_, mean, least, out_.data() + rows_, back_.data() + rows_);
    learned_ = true;
  }
  Fnv64 hash;
  hash.number(rows_).number(cols_).number(of_elements_);
  for (const float value : out_) hash.number(float_bits(value));
  digest_ = hash.value();
}

bool WeightedKey::learn(const void* reduced, DType dtype, bool) {
  return part_is_due() && observe(reduced, dtype);
}

template <typename Map>
void WeightedKey::map_residual(float* residual, const Place& place, Map map) const {
  if (residual == nullptr || !learned_) return;
  for (std::uint64_t done = 0, at = 0; done < rows_ * cols_; done += place.count, at += place.stride) {
    map(done, static_cast<std::size_t>(place.count), residual + at);
  }
}

void WeightedKey::settle(float* residual, const Place& place) {
  // What a residual is measured in changes with the weights.
  map_residual(residual, place, [this](std::uint64_t e, std::size_t n, float* x) { inverse(e, n, x); });
  set_weights();
  map_residual(residual, place, [this](std::uint64_t e, std::size_t n, float* x) { forward(e, n, x); });
}

std::string WeightedKey::report() const {
  return std::string("{\"geometry\":\"") + (factored() ? "factored" : "elementwise") +
         "\",\"rows\":" + std::to_string(rows_) + ",\"cols\":" + std::to_string(cols_) + ",\"path\":\"" +
         (learned_ ? of_elements_ ? "by element" : "by row and column" : "direct") +
         "\",\"calls\":" + std::to_string(calls_) + ",\"why\":\"" +
         (learned_    ? "weights from second moments of reduced values"
          : too_few() ? "too few values of a row or a column were seen yet"
                      : "nothing but zeros was reduced yet") +
         "\"}";
}

void WeightedKey::save(std::vector<std::uint8_t>& out) const {
  const std::uint32_t learned = learned_ ? 1 : 0;
  put(out, &calls_, 1);
  put(out, &observed_, 1);
  put(out, &learned, 1);
  put(out, factors_.data(), factors_.size());
  put(out, moments_.data(), moments_.size());
}

void WeightedKey::load(const std::uint8_t* data, std::size_t bytes) {
  Fields in(data, bytes);
  std::uint32_t calls = 0;
  std::uint32_t observed = 0;
  std::uint32_t learned = 0;
  std::vector<double> factors(factors_.size());
  std::vector<float> moments(moments_.size());
  in.get(&calls, 1);
  in.get(&observed, 1);
  in.get(&learned, 1);
  in.get(factors.data(), factors.size());
  in.get(moments.data(), moments.size());
  in.done();
  const auto sound = [](auto value) { return std::isfinite(value) && value >= 0; };
  if (learned > 1 || !std::all_of(factors.begin(), factors.end(), sound) ||
      !std::all_of(moments.begin(), moments.end(), sound)) {
    Fields::broken();
  }
  calls_ = calls;
  observed_ = observed;
  factors_ = std::move(factors);
  moments_ = std::move(moments);
  learned_ = of_elements_ = false;
  digest_ = 0;
  if (learned == 1) set_weights();
}

}  // namespace gcomm::gift
