// A BlockCodec over the tile drivers: walks a range tile by tile, through buffers that stay in the first-level
// cache wherever a step needs one (partial tiles, other dtypes than fp32, transforms, error feedback, sums).
#include "codec/block_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/fp_env.h"
#include "codec/source.h"
#include "transform/hadamard.h"

namespace gcomm::codec {
namespace {

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
  void decode_streaming(Encoded in, void* dst, DType dtype, std::size_t count) const override;
  void decode_mapped(Encoded in, void* dst, DType dtype, std::size_t count, const TileMap& map,
                     std::uint64_t element) const override;
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

  // One tile of the format; x is padded with +0. Where keep is given, it gets what will be decoded, unless the
  // result (whether there was a NaN or an Inf) is true.
  bool encode_values(const float* x, std::size_t count, const TileTask& task, float* keep) const;
  // The same from values before residual and transform.
  bool encode_tile(const float* x, const TileTask& task, float* keep) const;
  void decode_range(Encoded in, void* dst, DType dtype, std::size_t count, bool stream) const;
  // Whole values of one tile, inverse transform included; kTile floats are writable.
  void decode_tile(const std::uint8_t* src, std::size_t count, float* out) const;
  // x_0 + x_1 + ... of one tile, own being its own values, into sum.
  void sum_tile(const ReduceJob& job, const float* own, std::size_t count, std::size_t offset,
                float* sum) const;

  const Driver& driver_;
  const FormatDriver format_;
  const FormatLayout layout_;
  const bool careful_;
  const CarefulEncode careful_encode_;
  std::vector<std::uint32_t> signs_;
};

// The tile after [done, done + kTile), if it is whole.
Ahead next_tile(const void* src, DType dtype, std::size_t done, std::size_t total) {
  if (done + 2 * kTile > total) {
    return {};
  }
  const std::uint8_t* at = element_at(src, dtype, done + kTile);
  return {reinterpret_cast<const char*>(at), kTile * dtype_size(dtype)};
}

bool TileCodec::encode_values(const float* x, std::size_t count, const TileTask& task, float* keep) const {
  if (!careful_ && keep != nullptr) {
    return format_.encode_and_decode(x, count, task.dst, keep, task.ahead);
  }
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
  const bool special = careful_encode_(x, count, task.dst, options);
  if (!special && keep != nullptr) {
    format_.decode(task.dst, count, Sink::kStore, keep, keep);
  }
  return special;
}

bool TileCodec::encode_tile(const float* x, const TileTask& task, float* keep) const {
  if (task.residual == nullptr && !hadamard()) {
    return encode_values(x, task.count, task, keep);
  }
  const std::size_t length = padded(task.count);
  TileBuffer compensated;
  if (task.residual != nullptr) {
    std::memcpy(compensated.value, x, sizeof compensated.value);
    driver_.add_residual(compensated.value, task.residual, task.count);
    x = compensated.value;
  }
  TileBuffer coded;
  if (hadamard()) {
    driver_.hadamard(x, coded.value, length, spec().hadamard_size, signs_.data());
    fill_up(coded.value, length);
  }
  const bool special = encode_values(hadamard() ? coded.value : x, length, task, nullptr);
  if (task.residual != nullptr) {
    decode_tile(task.dst, task.count, coded.value);
    driver_.take_residual(x, coded.value, task.residual, task.count);
  }
  if (keep != nullptr && !special) {
    decode_tile(task.dst, task.count, keep);
  }
  return special;
}

void TileCodec::decode_tile(const std::uint8_t* src, std::size_t count, float* out) const {
  const std::size_t length = padded(count);
  format_.decode(src, length, Sink::kStore, out, out);
  if (hadamard()) {
    driver_.hadamard_inverse(out, out, length, spec().hadamard_size, signs_.data());
  }
}

EncodeResult TileCodec::encode(const EncodeJob& job) const {
  const FpEnvironment environment;
  check_capacity(job.capacity, job.count);
  const bool zero = spec().nonfinite == NonFinite::kZero;
  Source source(driver_, job.src, job.dtype, job.count, job.map, job.position.element, zero);
  EncodeResult result;
  for (std::size_t done = 0; done < job.count; done += kTile) {
    TileTask task;
    task.count = std::min(kTile, job.count - done);
    task.residual = job.residual == nullptr ? nullptr : job.residual + done;
    task.position = job.position;
    task.position.element += done;
    task.dst = job.dst + result.bytes;
    task.ahead = next_tile(job.src, job.dtype, done, job.count);
    const float* x = source.tile(done, task.count);
    bool special = source.zeroed();
    // A residual is finite and a transform spreads a NaN or an Inf at least to its own place, so none is
    // overlooked; but sums inside a transform can overflow.
    if (encode_tile(x, task, nullptr) && !zero) {
      special = (!hadamard() && job.map == nullptr) || source.has_nonfinite(done, task.count);
    }
    result.nonfinite |= special;
    result.bytes += layout_.tile_bytes(padded(task.count));
  }
  return result;
}

void TileCodec::decode(Encoded in, void* dst, DType dtype, std::size_t count) const {
  decode_range(in, dst, dtype, count, count * dtype_size(dtype) >= kStreamBytes);
}

void TileCodec::decode_streaming(Encoded in, void* dst, DType dtype, std::size_t count) const {
  decode_range(in, dst, dtype, count, true);
}

void TileCodec::decode_range(Encoded in, void* dst, DType dtype, std::size_t count, bool stream) const {
  const FpEnvironment environment;
  const ElementDriver& elements = driver_.elements[element_index(dtype)];
  check_encoded(in, count);
  const bool floats = dtype == DType::kF32 && is_aligned(dst, alignof(float));
  const bool streams = stream && floats && is_aligned(dst, 16) && !hadamard();
  const std::uint8_t* src = in.data;
  TileBuffer buffer;
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t length = std::min(kTile, count - done);
    std::uint8_t* out = element_at(dst, dtype, done);
    float* values = reinterpret_cast<float*>(out);
    if (streams && length == kTile) {
      format_.decode(src, length, Sink::kStream, values, values);
    } else if (floats && length == kTile) {
      decode_tile(src, length, values);
    } else {
      decode_tile(src, length, buffer.value);
      elements.store(buffer.value, length, out);
    }
    src += layout_.tile_bytes(padded(length));
  }
}

void TileCodec::decode_mapped(Encoded in, void* dst, DType dtype, std::size_t count, const TileMap& map,
                              std::uint64_t element) const {
  const FpEnvironment environment;
  const ElementDriver& elements = driver_.elements[element_index(dtype)];
  check_encoded(in, count);
  const std::uint8_t* src = in.data;
  MappedBuffer buffer;
  for (std::size_t done = 0; done < count; done += kMappedTiles * kTile) {
    const std::size_t group = std::min(kMappedTiles * kTile, count - done);
    for (std::size_t tile = 0; tile < group; tile += kTile) {
      const std::size_t length = std::min(kTile, group - tile);
      decode_tile(src, length, buffer.value + tile);
      src += layout_.tile_bytes(padded(length));
    }
    map.inverse(element + done, group, buffer.value);
    elements.overflow(buffer.value, group);
    elements.store(buffer.value, group, element_at(dst, dtype, done));
  }
}

void TileCodec::decode_accumulate(Encoded in, float* acc, std::size_t count) const {
  const FpEnvironment environment;
  const ElementDriver& floats = driver_.elements[element_index(DType::kF32)];
  check_encoded(in, count);
  const bool direct = is_aligned(acc, alignof(float)) && !hadamard();
  const std::uint8_t* src = in.data;
  TileBuffer sum;
  TileBuffer decoded;
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t length = std::min(kTile, count - done);
    if (direct && length == kTile) {
      format_.decode(src, length, Sink::kAdd, acc + done, acc + done);
    } else {
      floats.load(acc + done, length, sum.value);
      decode_tile(src, length, decoded.value);
      floats.add(decoded.value, length, sum.value);
      floats.store(sum.value, length, acc + done);
    }
    src += layout_.tile_bytes(padded(length));
  }
}

void TileCodec::sum_tile(const ReduceJob& job, const float* own, std::size_t count, std::size_t offset,
                         float* sum) const {
  const ElementDriver& floats = driver_.elements[element_index(DType::kF32)];
  const bool own_first = job.own_rank <= 1;  // x_0 + x_1 and x_1 + x_0 are the same number
  const float* total = own;
  if (!own_first) {
    decode_tile(job.arrivals[0].data + offset, count, sum);
    total = sum;
  }
  for (int rank = own_first ? 0 : 1; rank < job.ranks; ++rank) {
    if (rank == job.own_rank) {
      if (!own_first) {
        floats.add(own, count, sum);
      }
      continue;
    }
    const std::uint8_t* arrival = job.arrivals[rank].data + offset;
    if (!hadamard()) {
      format_.decode(arrival, count, Sink::kAdd, total, sum);
    } else {
      TileBuffer decoded;
      decode_tile(arrival, count, decoded.value);
      if (total != sum) {
        std::memcpy(sum, total, count * sizeof(float));
      }
      floats.add(decoded.value, count, sum);
    }
    total = sum;
  }
  if (total != sum) {
    std::memcpy(sum, total, count * sizeof(float));
  }
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
  const bool zero = spec().nonfinite == NonFinite::kZero;
  const bool in_place = job.dtype == DType::kF32 && job.map == nullptr && is_aligned(job.out, alignof(float));
  Source source(driver_, job.own, job.dtype, job.count, job.map, job.position.element, zero);
  EncodeResult result;
  TileBuffer sum;
  TileBuffer buffer;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < job.count; done += kTile) {
    TileTask task;
    task.count = std::min(kTile, job.count - done);
    task.residual = job.residual == nullptr ? nullptr : job.residual + done;
    task.position = job.position;
    task.position.element += done;
    task.dst = job.dst + offset;
    task.ahead = next_tile(job.own, job.dtype, done, job.count);

    const float* own = source.tile(done, task.count);
    bool own_special = source.zeroed();
    sum_tile(job, own, task.count, offset, sum.value);
    if (job.divisor != 1.0f) {
      driver_.divide(sum.value, task.count, job.divisor);
    }
    if (job.map == nullptr) {
      elements.overflow(sum.value, task.count);
    }
    fill_up(sum.value, task.count);

    const bool direct = in_place && job.out != nullptr && task.count == kTile;
    float* decoded = direct ? reinterpret_cast<float*>(element_at(job.out, job.dtype, done)) : buffer.value;
    if (encodes) {
      if (encode_tile(sum.value, task, job.out == nullptr ? nullptr : decoded)) {
        // A finite sum had finite inputs; this one may have overflowed.
        own_special |= !zero && source.has_nonfinite(done, task.count);
        if (job.out != nullptr) {
          decode_tile(task.dst, task.count, decoded);
        }
      }
    } else {
      own_special |=
          !zero && driver_.has_nonfinite(sum.value, task.count) && source.has_nonfinite(done, task.count);
      decoded = sum.value;
    }
    if (job.out != nullptr && job.map != nullptr) {
      job.map->inverse(task.position.element, task.count, decoded);
      elements.overflow(decoded, task.count);
    }
    if (job.out != nullptr && !(direct && encodes)) {
      elements.store(decoded, task.count, element_at(job.out, job.dtype, done));
    }
    result.nonfinite |= own_special;
    offset += layout_.tile_bytes(padded(task.count));
  }
  result.bytes = encodes ? offset : 0;
  return result;
}

}  // namespace

std::size_t element_index(DType dtype) {
  const DTypeInfo& info = dtype_info(dtype);
  if (!info.codable) {
    throw Error(Code::kInvalid, std::string("dtype: ") + info.name +
                                    " cannot be encoded; expected float32, bfloat16 or float16");
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
