// A BlockCodec over the tile drivers: walks a range tile by tile, through buffers that stay in the first-level cache
// wherever a step needs one (partial tiles, other dtypes than fp32, transforms, error feedback, sums).
#include "codec/block_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/fp_env.h"
#include "transform/hadamard.h"

namespace gcomm::codec {
namespace {

struct alignas(64) TileBuffer {
  float value[kTile];
};

// What encoding one tile needs besides its values.
struct TileTask {
  std::size_t count = 0;
  float* residual = nullptr;
  StreamPosition position;  // of this tile
  std::uint8_t* dst = nullptr;
  Ahead ahead;
};

class TileCodec final : public BlockCodec {
 public:
  TileCodec(const CodecSpec& spec, Isa isa, const Driver& driver)
      : BlockCodec(spec, isa),
        driver_(driver),
        format_(driver.formats[spec.format]),
        layout_(format_layout(spec.format)),
        careful_(spec.rounding == Rounding::kStochastic || spec.scale == ScaleRule::kSearch),
        careful_encode_(careful_encode(spec.format)) {
    if (hadamard()) {
      signs_ = transform::hadamard_signs(spec.seed, kTile);
    }
  }

  std::size_t max_encoded_bytes(std::size_t count) const override {
    const std::size_t n = padded(count);
    return n / kTile * layout_.tile_bytes(kTile) + (n % kTile == 0 ? 0 : layout_.tile_bytes(n % kTile));
  }

  EncodeResult encode(const EncodeJob& job) const override;
  void decode(Encoded in, void* dst, DType dtype, std::size_t count) const override;
  void decode_accumulate(Encoded in, float* acc, std::size_t count) const override;
  EncodeResult reduce_encode(const ReduceJob& job) const override;

 private:
  bool hadamard() const { return spec().transform == TransformKind::kHadamard; }
  // Elements that the format sees for a range of count.
  std::size_t padded(std::size_t count) const {
    const std::size_t group = hadamard() ? static_cast<std::size_t>(spec().hadamard_size) : 1;
    return (count + group - 1) / group * group;
  }
  void check_encoded(Encoded in, std::size_t count) const {
    if (in.bytes != max_encoded_bytes(count)) {
      throw Error(Code::kCodec, "encoded bytes: " + std::to_string(in.bytes) + " given, but " +
                                    std::to_string(count) + " elements in " + format().name + " take " +
                                    std::to_string(max_encoded_bytes(count)));
    }
  }
  void check_capacity(std::size_t capacity, std::size_t count) const {
    if (capacity < max_encoded_bytes(count)) {
      throw Error(Code::kInvalid, "capacity: " + std::to_string(capacity) + " bytes given, " +
                                      std::to_string(max_encoded_bytes(count)) + " needed");
    }
  }

  // One tile of the format; x is padded with +0.
  bool encode_values(const float* x, std::size_t count, const TileTask& task) const;
  // From loaded values (padded with +0, in a buffer that is changed) to bytes: residual, transform, format. Returns
  // whether the format saw a NaN or an Inf.
  bool encode_buffer(TileBuffer& x, const TileTask& task) const;
  // Whole values of one tile, inverse transform included.
  void decode_buffer(const std::uint8_t* src, std::size_t count, TileBuffer& out) const;
  // The owner's sum of one tile. Returns whether its own contribution held a NaN or an Inf.
  bool sum_tile(const ReduceJob& job, std::size_t done, std::size_t count, std::size_t offset, TileBuffer& sum,
                TileBuffer& spare) const;

  const Driver& driver_;
  const FormatDriver format_;
  const FormatLayout layout_;
  const bool careful_;
  const CarefulEncode careful_encode_;
  std::vector<std::uint32_t> signs_;
};

bool is_aligned(const void* p, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(p) % alignment == 0;
}

const std::uint8_t* element_at(const void* p, DType dtype, std::size_t index) {
  return static_cast<const std::uint8_t*>(p) + index * dtype_size(dtype);
}
std::uint8_t* element_at(void* p, DType dtype, std::size_t index) {
  return static_cast<std::uint8_t*>(p) + index * dtype_size(dtype);
}

// The tile after [done, done + kTile), if it is whole.
Ahead next_tile(const void* src, DType dtype, std::size_t done, std::size_t total) {
  if (done + 2 * kTile > total) {
    return {};
  }
  const std::uint8_t* at = element_at(src, dtype, done + kTile);
  return {reinterpret_cast<const char*>(at), kTile * dtype_size(dtype)};
}

void fill_up(TileBuffer& buffer, std::size_t count) {
  std::fill(buffer.value + count, buffer.value + kTile, 0.0f);
}

bool TileCodec::encode_values(const float* x, std::size_t count, const TileTask& task) const {
  if (!careful_) {
    return format_.encode(x, count, task.dst, task.ahead);
  }
  CarefulOptions options;
  options.stochastic = spec().rounding == Rounding::kStochastic;
  options.search = spec().scale == ScaleRule::kSearch;
  options.seed = spec().seed;
  options.element = task.position.element;
  options.call = task.position.call;
  options.stream = task.position.stream;
  return careful_encode_(x, count, task.dst, options);
}

bool TileCodec::encode_buffer(TileBuffer& x, const TileTask& task) const {
  const std::size_t length = padded(task.count);
  if (task.residual == nullptr) {
    if (hadamard()) {
      driver_.hadamard(x.value, length, spec().hadamard_size, signs_.data());
    }
    return encode_values(x.value, length, task);
  }
  driver_.add_residual(x.value, task.residual, task.count);
  TileBuffer other = x;
  if (hadamard()) {
    driver_.hadamard(other.value, length, spec().hadamard_size, signs_.data());
  }
  const bool special = encode_values(other.value, length, task);
  decode_buffer(task.dst, task.count, other);
  driver_.take_residual(x.value, other.value, task.residual, task.count);
  return special;
}

void TileCodec::decode_buffer(const std::uint8_t* src, std::size_t count, TileBuffer& out) const {
  const std::size_t length = padded(count);
  format_.decode(src, length, Sink::kStore, out.value, out.value);
  if (hadamard()) {
    driver_.hadamard_inverse(out.value, length, spec().hadamard_size, signs_.data());
  }
}

EncodeResult TileCodec::encode(const EncodeJob& job) const {
  const FpEnvironment environment;
  const ElementDriver& elements = driver_.elements[element_index(job.dtype)];
  check_capacity(job.capacity, job.count);
  const bool zero = spec().nonfinite == NonFinite::kZero;
  const bool changes_values = job.residual != nullptr || hadamard();
  const bool in_place = job.dtype == DType::kF32 && is_aligned(job.src, alignof(float)) && !changes_values;
  EncodeResult result;
  TileBuffer buffer;
  for (std::size_t done = 0; done < job.count; done += kTile) {
    TileTask task;
    task.count = std::min(kTile, job.count - done);
    task.residual = job.residual == nullptr ? nullptr : job.residual + done;
    task.position = job.position;
    task.position.element += done;
    task.dst = job.dst + result.bytes;
    task.ahead = next_tile(job.src, job.dtype, done, job.count);
    const std::uint8_t* src = element_at(job.src, job.dtype, done);
    bool special;
    bool encoded = false;
    if (in_place && task.count == kTile) {
      special = encode_values(reinterpret_cast<const float*>(src), kTile, task);
      encoded = !(special && zero);
    }
    if (!encoded) {
      elements.load(src, task.count, buffer.value);
      fill_up(buffer, task.count);
      special = (zero || changes_values) && driver_.has_nonfinite(buffer.value, task.count);
      if (special && zero) {
        driver_.zero_nonfinite(buffer.value, task.count);
      }
      const bool seen = encode_buffer(buffer, task);
      special |= seen && !changes_values;
    }
    result.nonfinite |= special;
    result.bytes += layout_.tile_bytes(padded(task.count));
  }
  return result;
}

void TileCodec::decode(Encoded in, void* dst, DType dtype, std::size_t count) const {
  const FpEnvironment environment;
  const ElementDriver& elements = driver_.elements[element_index(dtype)];
  check_encoded(in, count);
  const bool in_place = dtype == DType::kF32 && is_aligned(dst, alignof(float)) && !hadamard();
  const std::uint8_t* src = in.data;
  TileBuffer buffer;
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t length = std::min(kTile, count - done);
    std::uint8_t* out = element_at(dst, dtype, done);
    if (in_place && length == kTile) {
      float* values = reinterpret_cast<float*>(out);
      format_.decode(src, length, Sink::kStore, values, values);
    } else {
      decode_buffer(src, length, buffer);
      elements.store(buffer.value, length, out);
    }
    src += layout_.tile_bytes(padded(length));
  }
}

void TileCodec::decode_accumulate(Encoded in, float* acc, std::size_t count) const {
  const FpEnvironment environment;
  const ElementDriver& floats = driver_.elements[element_index(DType::kF32)];
  check_encoded(in, count);
  const bool in_place = is_aligned(acc, alignof(float)) && !hadamard();
  const std::uint8_t* src = in.data;
  TileBuffer sum;
  TileBuffer decoded;
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t length = std::min(kTile, count - done);
    if (in_place && length == kTile) {
      format_.decode(src, length, Sink::kAdd, acc + done, acc + done);
    } else {
      floats.load(acc + done, length, sum.value);
      decode_buffer(src, length, decoded);
      floats.add(decoded.value, length, sum.value);
      floats.store(sum.value, length, acc + done);
    }
    src += layout_.tile_bytes(padded(length));
  }
}

bool TileCodec::sum_tile(const ReduceJob& job, std::size_t done, std::size_t count, std::size_t offset,
                         TileBuffer& sum, TileBuffer& spare) const {
  const ElementDriver& elements = driver_.elements[element_index(job.dtype)];
  const ElementDriver& floats = driver_.elements[element_index(DType::kF32)];
  const std::uint8_t* own = element_at(job.own, job.dtype, done);
  const bool zero = spec().nonfinite == NonFinite::kZero;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const float* addend = spare.value;
    if (rank == job.own_rank) {
      elements.load(own, count, spare.value);
      if (zero) {
        driver_.zero_nonfinite(spare.value, count);
      }
    } else if (rank > 0 && !hadamard() && count == kTile) {
      format_.decode(job.arrivals[rank].data + offset, count, Sink::kAdd, sum.value, sum.value);
      continue;
    } else {
      decode_buffer(job.arrivals[rank].data + offset, count, spare);
    }
    if (rank == 0) {
      std::memcpy(sum.value, addend, count * sizeof(float));
    } else {
      floats.add(addend, count, sum.value);
    }
  }
  if (job.divisor != 1.0f) {
    driver_.divide(sum.value, count, job.divisor);
  }
  elements.overflow(sum.value, count);
  fill_up(sum, count);
  // A finite sum had finite inputs, unless they were replaced.
  if (!zero && !driver_.has_nonfinite(sum.value, count)) {
    return false;
  }
  elements.load(own, count, spare.value);
  return driver_.has_nonfinite(spare.value, count);
}

EncodeResult TileCodec::reduce_encode(const ReduceJob& job) const {
  const FpEnvironment environment;
  const ElementDriver& elements = driver_.elements[element_index(job.dtype)];
  for (int rank = 0; rank < job.ranks; ++rank) {
    if (rank != job.own_rank) {
      check_encoded(job.arrivals[rank], job.count);
    }
  }
  const bool encodes = job.dst != nullptr;
  if (encodes) {
    check_capacity(job.capacity, job.count);
  }
  EncodeResult result;
  TileBuffer sum;
  TileBuffer spare;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < job.count; done += kTile) {
    const std::size_t count = std::min(kTile, job.count - done);
    result.nonfinite |= sum_tile(job, done, count, offset, sum, spare);
    if (encodes) {
      TileTask task;
      task.count = count;
      task.residual = job.residual == nullptr ? nullptr : job.residual + done;
      task.position = job.position;
      task.position.element += done;
      task.dst = job.dst + offset;
      encode_buffer(sum, task);
      decode_buffer(task.dst, count, sum);
    }
    elements.store(sum.value, count, element_at(job.out, job.dtype, done));
    offset += layout_.tile_bytes(padded(count));
  }
  result.bytes = encodes ? offset : 0;
  return result;
}

}  // namespace

std::size_t element_index(DType dtype) {
  const DTypeInfo& info = dtype_info(dtype);
  if (!info.codable) {
    throw Error(Code::kInvalid,
                std::string("dtype: ") + info.name + " cannot be encoded; expected float32, bfloat16 or float16");
  }
  return static_cast<std::size_t>(dtype);
}

std::shared_ptr<const BlockCodec> make_tile_codec(const CodecSpec& spec, Isa isa, const Driver& driver) {
  return std::make_shared<TileCodec>(spec, isa, driver);
}

std::shared_ptr<const BlockCodec> BlockCodec::make(const CodecSpec& spec, Isa isa) {
  return make_tile_codec(spec, isa, need_driver(isa));
}

}  // namespace gcomm::codec
