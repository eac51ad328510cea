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

// Of a group, handled at a time where that is possible: rows enough for the kernels, and some room left in the
// cache.
constexpr std::size_t kSlice = 8 * codec::kTile;

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
  std::vector<float> own;     // before S was taken off, for error feedback
  std::vector<float> slice;   // decoded
  std::vector<float> sum;     // in decode_accumulate()
  std::vector<float> s;       // rows x width
  std::vector<float> plus;    // S as it is read, rows x width
  std::vector<float> minus;   // its negative
  std::vector<float> packed;  // a band's coordinates, row by row
};

// Where decoded elements of a group go, if anywhere.
struct RowCodec::Out {
  void* data = nullptr;
  DType dtype = DType::kF32;

  // They need no place of their own before.
  bool direct() const {
    return data != nullptr && dtype == DType::kF32 &&
           reinterpret_cast<std::uintptr_t>(data) % alignof(float) == 0;
  }
  float* place(std::size_t done, float* other) const {
    return direct() ? static_cast<float*>(data) + done : other;
  }
  void store(const codec::Driver& driver, const float* values, std::size_t done, std::size_t count) const {
    if (data == nullptr || direct()) return;
    driver.elements[codec::element_index(dtype)].store(values, count, codec::element_at(data, dtype, done));
  }
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
  const std::size_t cells = group_ * cols_;
  memory_->x.resize(cells + kLanes);
  memory_->own.resize(spec.error_feedback ? cells : 0);
  memory_->slice.resize(kSlice + kLanes);
  memory_->sum.resize(kSlice + kLanes);
  for (std::vector<float>* factor : {&memory_->s, &memory_->plus, &memory_->minus}) {
    factor->resize(group_ * width_);
  }
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

std::size_t RowCodec::bands_bytes(std::size_t rows) const {
  std::size_t bytes = 0;
  for (const Band& band : bands_) bytes += band.block->max_encoded_bytes(rows * band.count);
  return bytes;
}

std::size_t RowCodec::group_bytes(std::size_t rows) const {
  return bands_bytes(rows) + rest_->max_encoded_bytes(rows * cols_);
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

bool RowCodec::project(Memory& memory, std::size_t rows, const float* residual) const {
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
  if (all_finite(memory.s.data(), rows * width_)) return false;
  // What is not finite stays where it is: its row keeps the coordinates of the others.
  g.zero_nonfinite = true;
  products(g, 0, rows, rank_, nullptr, nullptr, v_.data(), memory.s.data(), isa());
  return !all_finite(memory.x.data(), cells);
}

std::size_t RowCodec::encode_bands(Memory& memory, std::size_t rows, std::uint8_t* dst) const {
  // Coordinates so large that a sum could overflow, or so large against what the basis promised, stay in the
  // rest with all of their row.
  for (std::size_t i = 0; i < rows; ++i) {
    float* row = memory.s.data() + i * width_;
    const bool fits = all_within(row, rank_, kMostCoordinate);
    for (std::size_t k = 0; k < rank_; ++k) row[k] /= scale_[k];
    if (!fits || !all_finite(row, rank_)) std::fill(row, row + width_, 0.0f);
  }
  std::size_t used = 0;
  for (const Band& band : bands_) {
    float* packed = memory.packed.data();
    for (std::size_t i = 0; i < rows; ++i) {
      const float* from = memory.s.data() + i * width_ + band.first;
      std::copy(from, from + band.count, packed + i * band.count);
    }
    codec::EncodeJob job;
    job.src = packed;
    job.count = rows * band.count;
    job.dst = dst + used;
    job.capacity = band.block->max_encoded_bytes(job.count);
    used += band.block->encode(job).bytes;
  }
  return used;
}

std::size_t RowCodec::decode_bands(Memory& memory, const std::uint8_t* src, std::size_t rows) const {
  std::size_t used = 0;
  for (const Band& band : bands_) {
    const std::size_t count = rows * band.count;
    const std::size_t bytes = band.block->max_encoded_bytes(count);
    band.block->decode({src + used, bytes}, memory.packed.data(), DType::kF32, count);
    used += bytes;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < band.count; ++k) {
        const float s = memory.packed[i * band.count + k] * scale_[band.first + k];
        memory.plus[i * width_ + band.first + k] = s;
        memory.minus[i * width_ + band.first + k] = -s;
      }
    }
  }
  return used;
}

// From here on in slices: what is made of one stays in the cache until the next.
void RowCodec::encode_group(Memory& memory, std::size_t rows, codec::StreamPosition position, std::uint8_t* dst,
                            float* residual, Out out) const {
  dst += encode_bands(memory, rows, dst);
  decode_bands(memory, dst - bands_bytes(rows), rows);
  const std::size_t cells = rows * cols_;
  for (std::size_t done = 0; done < cells; done += kSlice) {
    const std::size_t count = std::min(kSlice, cells - done);
    float* x = memory.x.data() + done;
    rank_update(x, done, count, cols_, width_, memory.minus.data(), vt_.data(), isa());
    codec::EncodeJob job;
    job.src = x;
    job.count = count;
    job.position = position;
    job.position.element += done;
    job.dst = dst;
    job.capacity = rest_->max_encoded_bytes(count);
    rest_->encode(job);
    if (residual != nullptr || out.data != nullptr) {
      float* kept = out.place(done, memory.slice.data());
      decode_slice(memory, {dst, job.capacity}, done, count, kept);
      if (residual != nullptr) {
        driver_.take_residual(memory.own.data() + done, kept, residual + done, count);
      }
      out.store(driver_, kept, done, count);
    }
    dst += job.capacity;
  }
}

void RowCodec::decode_slice(const Memory& memory, codec::Encoded rest, std::size_t done, std::size_t count,
                            float* values) const {
  rest_->decode(rest, values, DType::kF32, count);
  rank_update(values, done, count, cols_, width_, memory.plus.data(), vt_.data(), isa());
}

template <typename Place, typename Take>
void RowCodec::decode_group(Memory& memory, const std::uint8_t* src, std::size_t rows, Place place,
                            Take take) const {
  src += decode_bands(memory, src, rows);
  const std::size_t cells = rows * cols_;
  for (std::size_t done = 0; done < cells; done += kSlice) {
    const std::size_t count = std::min(kSlice, cells - done);
    const std::size_t bytes = rest_->max_encoded_bytes(count);
    float* values = place(done);
    decode_slice(memory, {src, bytes}, done, count, values);
    take(done, count, values);
    src += bytes;
  }
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
    const std::size_t rows = count / cols_;
    result.nonfinite |= load(job.src, job.dtype, done, count, memory.x.data());
    codec::StreamPosition position = job.position;
    position.element += done;
    float* residual = job.residual == nullptr ? nullptr : job.residual + done;
    result.nonfinite |= project(memory, rows, residual);
    encode_group(memory, rows, position, job.dst + result.bytes, residual, {});
    result.bytes += group_bytes(rows);
    done += count;
  }
  return result;
}

void RowCodec::decode(codec::Encoded in, void* dst, DType dtype, std::size_t count) const {
  const FpEnvironment environment;
  check_encoded(in, count);
  codec::element_index(dtype);  // throws for one that codecs do not take
  Memory& memory = *memory_;
  std::size_t offset = 0;
  for (std::size_t begin = 0; begin < count;) {
    const std::size_t part = std::min(granule(), count - begin);
    const Out out{codec::element_at(dst, dtype, begin), dtype};
    decode_group(
        memory, in.data + offset, part / cols_,
        [&](std::size_t done) { return out.place(done, memory.slice.data()); },
        [&](std::size_t done, std::size_t n, const float* values) { out.store(driver_, values, done, n); });
    offset += group_bytes(part / cols_);
    begin += part;
  }
}

void RowCodec::decode_accumulate(codec::Encoded in, float* acc, std::size_t count) const {
  const FpEnvironment environment;
  check_encoded(in, count);
  const codec::ElementDriver& floats = driver_.elements[codec::element_index(DType::kF32)];
  Memory& memory = *memory_;
  std::size_t offset = 0;
  for (std::size_t begin = 0; begin < count;) {
    const std::size_t part = std::min(granule(), count - begin);
    decode_group(
        memory, in.data + offset, part / cols_, [&](std::size_t) { return memory.slice.data(); },
        [&](std::size_t done, std::size_t n, const float* values) {
          float* at = acc + begin + done;
          floats.load(at, n, memory.sum.data());
          floats.add(values, n, memory.sum.data());
          floats.store(memory.sum.data(), n, at);
        });
    offset += group_bytes(part / cols_);
    begin += part;
  }
}

// memory.x = x_0 + x_1 + ..., divided. Returns whether zeros took the place of something of the own values.
bool RowCodec::sum_group(Memory& memory, const codec::ReduceJob& job, std::size_t begin, std::size_t rows,
                         std::size_t offset) const {
  const codec::ElementDriver& floats = driver_.elements[codec::element_index(DType::kF32)];
  const std::size_t count = rows * cols_;
  float* x = memory.x.data();
  bool zeroed = false;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const bool first = rank == 0;
    if (rank != job.own_rank) {
      decode_group(
          memory, job.arrivals[rank].data + offset, rows,
          [&](std::size_t done) { return first ? x + done : memory.slice.data(); },
          [&](std::size_t done, std::size_t n, const float* values) {
            if (!first) floats.add(values, n, x + done);
          });
      continue;
    }
    if (first) {
      zeroed = load(job.own, job.dtype, begin, count, x);
      continue;
    }
    for (std::size_t done = 0; done < count; done += kSlice) {
      const std::size_t n = std::min(kSlice, count - done);
      zeroed |= load(job.own, job.dtype, begin + done, n, memory.slice.data());
      floats.add(memory.slice.data(), n, x + done);
    }
  }
  std::fill(x + count, x + count + kLanes, 0.0f);
  if (job.divisor != 1.0f) driver_.divide(x, count, job.divisor);
  driver_.elements[codec::element_index(job.dtype)].overflow(x, count);
  return zeroed;
}

bool RowCodec::own_nonfinite(Memory& memory, const codec::ReduceJob& job, std::size_t begin,
                             std::size_t count) const {
  for (std::size_t done = 0; done < count; done += kSlice) {
    const std::size_t n = std::min(kSlice, count - done);
    load(job.own, job.dtype, begin + done, n, memory.slice.data());
    if (driver_.has_nonfinite(memory.slice.data(), n)) return true;
  }
  return false;
}

codec::EncodeResult RowCodec::reduce_encode(const codec::ReduceJob& job) const {
  const FpEnvironment environment;
  check_count(job.count);
  for (int rank = 0; rank < job.ranks; ++rank) {
    if (rank != job.own_rank) check_encoded(job.arrivals[rank], job.count);
  }
  if (job.dst != nullptr) check_capacity(job.capacity, job.count);
  Memory& memory = *memory_;
  codec::EncodeResult result;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < job.count;) {
    const std::size_t count = std::min(granule(), job.count - done);
    const std::size_t rows = count / cols_;
    result.nonfinite |= sum_group(memory, job, done, rows, offset);
    Out out;
    if (job.out != nullptr) out = {codec::element_at(job.out, job.dtype, done), job.dtype};
    float* residual = job.residual == nullptr ? nullptr : job.residual + done;
    const bool encodes = job.dst != nullptr;
    // A finite sum had finite inputs.
    const bool suspect =
        encodes ? project(memory, rows, residual) : driver_.has_nonfinite(memory.x.data(), count);
    if (suspect) result.nonfinite |= own_nonfinite(memory, job, done, count);
    if (encodes) {
      codec::StreamPosition position = job.position;
      position.element += done;
      encode_group(memory, rows, position, job.dst + offset, residual, out);
    } else if (out.data != nullptr) {
      driver_.elements[codec::element_index(job.dtype)].store(memory.x.data(), count, out.data);
    }
    offset += group_bytes(rows);
    done += count;
  }
  result.bytes = job.dst == nullptr ? 0 : offset;
  return result;
}

}  // namespace gcomm::gift
