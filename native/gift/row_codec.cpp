#include "gift/row_codec.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/fp_env.h"
#include "codec/block_codec.h"
#include "gift/products.h"
#include "gift/rows.h"

namespace gcomm::gift {
namespace {

constexpr std::size_t kFineBand = 16;        // directions that are worth more bits than the others
constexpr std::size_t kRowsAtOnce = 16;      // the kernels read their factors once for so many
constexpr std::size_t kCellsAtOnce = 65536;  // a group and what is made of it stay in the second-level cache
constexpr std::size_t kBlock = 64;           // no format's block, nor the default Hadamard's, straddles groups

constexpr std::size_t kLanes = 16;  // vectors may read so far past a range

std::shared_ptr<const codec::BlockCodec> band_codec(const char* format, codec::Isa isa) {
  return codec::BlockCodec::make(codec::parse_spec(format), isa);
}

}  // namespace

std::vector<Band> row_bands(std::size_t rank, int side, codec::Isa isa) {
  if (side >= 0) return {{0, rank, band_codec(codec::formats()[static_cast<std::size_t>(side)].name, isa)}};
  const std::size_t fine = std::min(rank, kFineBand);
  std::vector<Band> bands{{0, fine, band_codec("int6", isa)}};
  if (fine < rank) bands.push_back({fine, rank - fine, band_codec("int4", isa)});
  return bands;
}

std::size_t rows_together(std::size_t cols) {
  std::size_t rows = kBlock / std::gcd(cols, kBlock);
  while (rows * cols < codec::kTile || (rows < kRowsAtOnce && 2 * rows * cols <= kCellsAtOnce)) rows *= 2;
  return rows;
}

struct RowCodec::Memory {
  std::vector<float> x;       // a group's values
  std::vector<float> kept;    // the same, decoded
  std::vector<float> sum;     // in decode_accumulate()
  std::vector<float> own;     // before S was taken off, for error feedback
  std::vector<float> s;       // rows x width
  std::vector<float> l;       // rows x width
  std::vector<float> packed;  // a band's coordinates, row by row
};

RowCodec::RowCodec(const codec::CodecSpec& spec, codec::Isa isa, std::shared_ptr<const codec::BlockCodec> rest,
                   std::size_t cols, std::size_t rank)
    : BlockCodec(spec, isa),
      cols_(cols),
      rank_(rank),
      width_(padded_rank(rank)),
      group_(rows_together(cols)),
      rest_(std::move(rest)),
      bands_(row_bands(rank, spec.gift.side, isa)),
      vt_(cols * padded_rank(rank)),
      scale_(rank, 1.0f),
      driver_(codec::need_driver(isa)),
      memory_(std::make_unique<Memory>()) {
  for (std::vector<float>* values : {&memory_->x, &memory_->kept, &memory_->sum, &memory_->own}) {
    values->resize(group_ * cols_ + kLanes);
  }
  memory_->s.resize(group_ * width_);
  memory_->l.resize(group_ * width_);
  memory_->packed.resize(group_ * rank_);
}

RowCodec::~RowCodec() = default;

void RowCodec::set_basis(const float* v, const std::vector<double>& singular_values, double floor,
                         std::size_t rows) {
  v_.assign(v, v + cols_ * width_);
  for (std::size_t j = 0; j < cols_; ++j) {
    for (std::size_t k = 0; k < width_; ++k) vt_[k * cols_ + j] = v_[j * width_ + k];
  }
  for (std::size_t k = 0; k < rank_; ++k) {
    int exponent = 0;
    std::frexp(std::max(singular_values[k], floor) / std::sqrt(static_cast<double>(rows)), &exponent);
    scale_[k] = std::ldexp(1.0f, std::clamp(exponent, -100, 100));
  }
}

std::size_t RowCodec::group_bytes(std::size_t rows) const {
  std::size_t bytes = rest_->max_encoded_bytes(rows * cols_);
  for (const Band& band : bands_) bytes += band.block->max_encoded_bytes(rows * band.count);
  return bytes;
}

std::size_t RowCodec::max_encoded_bytes(std::size_t count) const {
  const std::size_t rows = (count + cols_ - 1) / cols_;
  return rows / group_ * group_bytes(group_) + (rows % group_ == 0 ? 0 : group_bytes(rows % group_));
}

void RowCodec::check_count(std::size_t count) const {
  if (count % cols_ == 0) return;
  throw Error(Code::kInternal,
              std::to_string(count) + " elements are no whole rows of " + std::to_string(cols_));
}

void RowCodec::check_encoded(codec::Encoded in, std::size_t count) const {
  check_count(count);
  if (in.bytes != max_encoded_bytes(count)) {
    throw Error(Code::kCodec, "encoded bytes: " + std::to_string(in.bytes) + " given, but " +
                                  std::to_string(count) + " elements in " + spec().text() + " take " +
                                  std::to_string(max_encoded_bytes(count)));
  }
}

void RowCodec::check_capacity(std::size_t capacity, std::size_t count) const {
  if (capacity >= max_encoded_bytes(count)) return;
  throw Error(Code::kInvalid, "capacity: " + std::to_string(capacity) + " bytes given, " +
                                  std::to_string(max_encoded_bytes(count)) + " needed");
}

bool RowCodec::encode_group(Memory& memory, std::size_t rows, codec::StreamPosition position, std::uint8_t* dst,
                            float* residual, bool keep) const {
  const std::size_t cells = rows * cols_;
  if (residual != nullptr) {
    driver_.add_residual(memory.x.data(), residual, cells);
    std::copy(memory.x.data(), memory.x.data() + cells, memory.own.data());
  }
  MatrixView g;
  g.data = memory.x.data();
  g.rows = rows;
  g.cols = cols_;
  products(g, 0, rows, rank_, nullptr, nullptr, v_.data(), memory.s.data(), isa());
  bool nonfinite = false;
  if (!all_finite(memory.s.data(), rows * width_)) {
    nonfinite = !all_finite(memory.x.data(), cells);
    // What is not finite stays where it is: its row keeps the coordinates of the others.
    g.zero_nonfinite = true;
    products(g, 0, rows, rank_, nullptr, nullptr, v_.data(), memory.s.data(), isa());
  }
  // Coordinates so large that a sum could overflow, or so large against what the basis promised, stay in the
  // rest with all of their row.
  for (std::size_t i = 0; i < rows; ++i) {
    float* row = memory.s.data() + i * width_;
    const bool fits = all_within(row, rank_, kMostCoordinate);
    for (std::size_t k = 0; k < rank_; ++k) row[k] /= scale_[k];
    if (!fits || !all_finite(row, rank_)) std::fill(row, row + width_, 0.0f);
  }
  std::fill(memory.l.begin(), memory.l.end(), 0.0f);
  for (const Band& band : bands_) {
    float* packed = memory.packed.data();
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < band.count; ++k) {
        packed[i * band.count + k] = memory.s[i * width_ + band.first + k];
      }
    }
    codec::EncodeJob job;
    job.src = packed;
    job.count = rows * band.count;
    job.dst = dst;
    job.capacity = band.block->max_encoded_bytes(job.count);
    dst += band.block->encode(job).bytes;
    band.block->decode({job.dst, job.capacity}, packed, DType::kF32, job.count);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < band.count; ++k) {
        memory.l[i * width_ + band.first + k] = -packed[i * band.count + k] * scale_[band.first + k];
      }
    }
  }
  rank_update(memory.x.data(), 0, cells, cols_, width_, memory.l.data(), vt_.data(), isa());
  codec::EncodeJob job;
  job.src = memory.x.data();
  job.count = cells;
  job.position = position;
  job.dst = dst;
  job.capacity = rest_->max_encoded_bytes(job.count);
  rest_->encode(job);
  if (keep || residual != nullptr) {
    rest_->decode({dst, job.capacity}, memory.kept.data(), DType::kF32, cells);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < rank_; ++k) memory.l[i * width_ + k] = -memory.l[i * width_ + k];
    }
    rank_update(memory.kept.data(), 0, cells, cols_, width_, memory.l.data(), vt_.data(), isa());
  }
  if (residual != nullptr) driver_.take_residual(memory.own.data(), memory.kept.data(), residual, cells);
  return nonfinite;
}

void RowCodec::decode_group(Memory& memory, const std::uint8_t* src, std::size_t rows, float* out) const {
  std::fill(memory.l.begin(), memory.l.end(), 0.0f);
  for (const Band& band : bands_) {
    const std::size_t count = rows * band.count;
    const std::size_t bytes = band.block->max_encoded_bytes(count);
    band.block->decode({src, bytes}, memory.packed.data(), DType::kF32, count);
    src += bytes;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < band.count; ++k) {
        memory.l[i * width_ + band.first + k] = memory.packed[i * band.count + k] * scale_[band.first + k];
      }
    }
  }
  const std::size_t count = rows * cols_;
  rest_->decode({src, rest_->max_encoded_bytes(count)}, out, DType::kF32, count);
  rank_update(out, 0, count, cols_, width_, memory.l.data(), vt_.data(), isa());
}

bool RowCodec::load(const void* src, DType dtype, std::size_t begin, std::size_t count, float* x) const {
  driver_.elements[codec::element_index(dtype)].load(codec::element_at(src, dtype, begin), count, x);
  std::fill(x + count, x + count + kLanes, 0.0f);
  if (spec().nonfinite != codec::NonFinite::kZero || !driver_.has_nonfinite(x, count)) return false;
  driver_.zero_nonfinite(x, count);
  return true;
}

codec::EncodeResult RowCodec::encode(const codec::EncodeJob& job) const {
  const FpEnvironment environment;
  check_count(job.count);
  check_capacity(job.capacity, job.count);
  Memory& memory = *memory_;
  codec::EncodeResult result;
  for (std::size_t done = 0; done < job.count;) {
    const std::size_t count = std::min(granule(), job.count - done);
    float* x = memory.x.data();
    result.nonfinite |= load(job.src, job.dtype, done, count, x);
    codec::StreamPosition position = job.position;
    position.element += done;
    float* residual = job.residual == nullptr ? nullptr : job.residual + done;
    result.nonfinite |= encode_group(memory, count / cols_, position, job.dst + result.bytes, residual, false);
    result.bytes += group_bytes(count / cols_);
    done += count;
  }
  return result;
}

void RowCodec::decode(codec::Encoded in, void* dst, DType dtype, std::size_t count) const {
  const FpEnvironment environment;
  check_encoded(in, count);
  const codec::ElementDriver& elements = driver_.elements[codec::element_index(dtype)];
  Memory& memory = *memory_;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < count;) {
    const std::size_t part = std::min(granule(), count - done);
    decode_group(memory, in.data + offset, part / cols_, memory.kept.data());
    elements.store(memory.kept.data(), part, codec::element_at(dst, dtype, done));
    offset += group_bytes(part / cols_);
    done += part;
  }
}

void RowCodec::decode_accumulate(codec::Encoded in, float* acc, std::size_t count) const {
  const FpEnvironment environment;
  check_encoded(in, count);
  const codec::ElementDriver& floats = driver_.elements[codec::element_index(DType::kF32)];
  Memory& memory = *memory_;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < count;) {
    const std::size_t part = std::min(granule(), count - done);
    decode_group(memory, in.data + offset, part / cols_, memory.kept.data());
    floats.load(acc + done, part, memory.sum.data());
    floats.add(memory.kept.data(), part, memory.sum.data());
    floats.store(memory.sum.data(), part, acc + done);
    offset += group_bytes(part / cols_);
    done += part;
  }
}

codec::EncodeResult RowCodec::reduce_encode(const codec::ReduceJob& job) const {
  const FpEnvironment environment;
  check_count(job.count);
  for (int rank = 0; rank < job.ranks; ++rank) {
    if (rank != job.own_rank) check_encoded(job.arrivals[rank], job.count);
  }
  if (job.dst != nullptr) check_capacity(job.capacity, job.count);
  const codec::ElementDriver& elements = driver_.elements[codec::element_index(job.dtype)];
  const codec::ElementDriver& floats = driver_.elements[codec::element_index(DType::kF32)];
  Memory& memory = *memory_;
  codec::EncodeResult result;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < job.count;) {
    const std::size_t count = std::min(granule(), job.count - done);
    const std::size_t rows = count / cols_;
    for (int rank = 0; rank < job.ranks; ++rank) {
      float* into = (rank == 0 ? memory.x : memory.kept).data();
      if (rank == job.own_rank) {
        result.nonfinite |= load(job.own, job.dtype, done, count, into) || driver_.has_nonfinite(into, count);
      } else {
        decode_group(memory, job.arrivals[rank].data + offset, rows, into);
      }
      if (rank > 0) floats.add(into, count, memory.x.data());
    }
    std::fill(memory.x.data() + count, memory.x.data() + count + kLanes, 0.0f);
    if (job.divisor != 1.0f) driver_.divide(memory.x.data(), count, job.divisor);
    elements.overflow(memory.x.data(), count);
    const float* decoded = memory.x.data();
    if (job.dst != nullptr) {
      codec::StreamPosition position = job.position;
      position.element += done;
      encode_group(memory, rows, position, job.dst + offset,
                   job.residual == nullptr ? nullptr : job.residual + done, job.out != nullptr);
      decoded = memory.kept.data();
    }
    if (job.out != nullptr) elements.store(decoded, count, codec::element_at(job.out, job.dtype, done));
    offset += group_bytes(rows);
    done += count;
  }
  result.bytes = job.dst == nullptr ? 0 : offset;
  return result;
}

}  // namespace gcomm::gift
