#include "mapl/rvq.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/float.h"
#include "mapl/codes.h"

namespace gcomm::mapl {
namespace {

constexpr std::size_t kBlock = 16 * kSearchVectors;  // sub-vectors that go through all stages together
constexpr std::uint16_t kLargestScale = 0x7F7F;      // the largest finite bf16
constexpr std::size_t kSumLanes = 8;

struct F32 {
  using Bits = float;
  static constexpr float kLargest = FLT_MAX;
  static float load(float x) { return x; }
  static float store(float x) { return x; }
};
struct BF16 {
  using Bits = std::uint16_t;
  static constexpr float kLargest = 0x1.fep127f;
  static float load(std::uint16_t x) { return bf16_to_float(x); }
  static std::uint16_t store(float x) { return float_to_bf16(x); }
};
struct F16 {
  using Bits = std::uint16_t;
  static constexpr float kLargest = 65504.0f;
  static float load(std::uint16_t x) { return f16_to_float(x); }
  static std::uint16_t store(float x) { return float_to_f16(x); }
};

template <class T>
float element(const void* data, std::size_t at) {
  typename T::Bits bits;
  std::memcpy(&bits, static_cast<const std::uint8_t*>(data) + at * sizeof bits, sizeof bits);
  return T::load(bits);
}

// The root mean square of each row, as bf16, never rounded up to Inf: what is finite stays so. The squares are
// exact in float64; element i goes to sum i mod 8, and those are added pairwise.
template <class T>
void measure_rows(const Rows& z, std::uint16_t* scales) {
  for (std::size_t t = 0; t < z.tokens; ++t) {
    double sum[kSumLanes] = {};
    for (std::size_t i = 0; i < z.dim; ++i) {
      const double x = element<T>(z.data, t * z.dim + i);
      sum[i % kSumLanes] += x * x;
    }
    for (std::size_t width = kSumLanes / 2; width > 0; width /= 2) {
      for (std::size_t lane = 0; lane < width; ++lane) {
        sum[lane] += sum[lane + width];
      }
    }
    if (!std::isfinite(sum[0])) {  // squares of finite numbers add up to far less than float64's largest
      throw Error(Code::kNonFinite, "z: row " + std::to_string(t) + " holds a NaN or an Inf");
    }
    const auto rms = static_cast<float>(std::sqrt(sum[0] / static_cast<double>(z.dim)));
    scales[t] = std::min(float_to_bf16(rms), kLargestScale);
  }
}

// Sub-vectors begin to begin + count of the row they are in or those after it, each over its row's scale.
template <class T>
void load_vectors(const Rows& z, const std::uint16_t* scales, std::size_t length, std::size_t begin,
                  std::size_t count, float* to) {
  const std::size_t a_row = subvectors(z.dim, length);
  for (std::size_t v = begin; v < begin + count; ++v, to += length) {
    const std::size_t row = v / a_row;
    const std::size_t first = v % a_row * length;
    const std::size_t here = std::min(length, z.dim - first);
    const float scale = bf16_to_float(scales[row]);
    for (std::size_t j = 0; j < here; ++j) {
      const float x = element<T>(z.data, row * z.dim + first + j);
      to[j] = scale > 0.0f ? x / scale : 0.0f;
    }
    std::fill(to + here, to + length, 0.0f);
  }
}

// kLength, kBits: a sub-vector's length and a code's bits where the compiler may know them, else 0.
template <class T, std::size_t kLength, unsigned kBits>
void decode_vectors(const Codebook& book, const std::uint8_t* data, void* out, std::size_t tokens,
                    std::size_t dim) {
  const CodebookShape& shape = book.shape();
  const std::size_t length = kLength > 0 ? kLength : shape.subvector;
  const std::size_t a_row = subvectors(dim, length);
  CodeReader codes(data + 2 * tokens, kBits > 0 ? kBits : shape.bits());
  auto* to = static_cast<std::uint8_t*>(out);
  float sum[kMaxSubvector];
  for (std::size_t t = 0; t < tokens; ++t) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data + 2 * t, 2);
    const float scale = bf16_to_float(bits);
    for (std::size_t p = 0; p < a_row; ++p) {
      std::memcpy(sum, book.codeword(0, codes.get()), length * sizeof(float));
      for (std::size_t s = 1; s < shape.stages; ++s) {
        const float* codeword = book.codeword(s, codes.get());
        for (std::size_t j = 0; j < length; ++j) {
          sum[j] += codeword[j];
        }
      }
      const std::size_t here = std::min(length, dim - p * length);
      typename T::Bits decoded[kMaxSubvector];
      for (std::size_t j = 0; j < here; ++j) {
        const float x = scale * sum[j];
        decoded[j] = T::store(std::min(std::max(x, -T::kLargest), T::kLargest));
      }
      std::memcpy(to, decoded, here * sizeof decoded[0]);
      to += here * sizeof decoded[0];
    }
  }
}

template <class T>
void decode_as(const Codebook& book, const std::uint8_t* data, void* out, std::size_t tokens, std::size_t dim) {
  if (book.shape().subvector == 8 && book.shape().bits() == 8) {
    decode_vectors<T, 8, 8>(book, data, out, tokens, dim);
  } else {
    decode_vectors<T, 0, 0>(book, data, out, tokens, dim);
  }
}

void check_encoded(const CodebookShape& shape, const std::uint8_t* data, std::uint64_t bytes,
                   std::size_t tokens, std::size_t dim) {
  const std::uint64_t expected = encoded_bytes(shape, dim, tokens);
  if (bytes != expected) {
    throw Error(Code::kCodec, "rvq: " + std::to_string(bytes) + " bytes, expected " + std::to_string(expected) +
                                  " for " + std::to_string(tokens) + " rows of " + std::to_string(dim));
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data + 2 * t, 2);
    if (bits > kLargestScale) {
      throw Error(Code::kCodec, "rvq: the scale of row " + std::to_string(t) + " is no finite number");
    }
  }
  const std::size_t codes = tokens * subvectors(dim, shape.subvector) * shape.stages;
  CodeReader reader(data + 2 * tokens, shape.bits());
  const bool full = shape.codewords == std::size_t{1} << shape.bits();
  if (full && codes * shape.bits() % 8 == 0) {
    return;  // no bits that could be wrong
  }
  for (std::size_t i = 0; i < codes; ++i) {
    const std::uint32_t code = reader.get();
    if (code >= shape.codewords) {
      throw Error(Code::kCodec, "rvq: code " + std::to_string(code) + ", expected less than " +
                                    std::to_string(shape.codewords));
    }
  }
  if (reader.rest() != 0) {
    throw Error(Code::kCodec, "rvq: bits set behind the last code");
  }
}

[[noreturn]] void refuse(DType dtype) {
  throw Error(Code::kInternal, "rvq: element type " + std::to_string(static_cast<int>(dtype)));
}

}  // namespace

std::uint64_t encoded_bytes(const CodebookShape& shape, std::size_t dim, std::size_t tokens) {
  const std::uint64_t codes_of_row = subvectors(dim, shape.subvector) * shape.stages;
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(codes_of_row * shape.bits(), tokens, &bits) || bits > UINT64_MAX / 2) {
    throw Error(Code::kInvalid, std::to_string(tokens) + " rows take more than 2^60 bytes");
  }
  return 2 * tokens + packed_bytes(tokens * codes_of_row, shape.bits());
}

void RowCoder::measure(const Rows& z) {
  scales_.resize(std::max(scales_.size(), z.tokens));
  switch (z.dtype) {
    case DType::kF32:
      return measure_rows<F32>(z, scales_.data());
    case DType::kBF16:
      return measure_rows<BF16>(z, scales_.data());
    case DType::kF16:
      return measure_rows<F16>(z, scales_.data());
    default:
      refuse(z.dtype);
  }
}

void RowCoder::load(const Rows& z, std::size_t length, std::size_t begin, std::size_t count, float* to) const {
  switch (z.dtype) {
    case DType::kF32:
      return load_vectors<F32>(z, scales_.data(), length, begin, count, to);
    case DType::kBF16:
      return load_vectors<BF16>(z, scales_.data(), length, begin, count, to);
    case DType::kF16:
      return load_vectors<F16>(z, scales_.data(), length, begin, count, to);
    default:
      refuse(z.dtype);
  }
}

void RowCoder::encode(const Codebook& book, const Rows& z, std::uint8_t* out) {
  const CodebookShape& shape = book.shape();
  const std::size_t length = shape.subvector;
  if (z.tokens == 0) {
    return;  // there may be no memory at all
  }
  measure(z);
  std::memcpy(out, scales_.data(), 2 * z.tokens);
  CodeWriter writer(out + 2 * z.tokens, shape.bits());
  vectors_.resize(std::max(vectors_.size(), kBlock * length));
  codes_.resize(std::max(codes_.size(), shape.stages * kBlock));
  const std::size_t all = z.tokens * subvectors(z.dim, length);
  for (std::size_t begin = 0; begin < all; begin += kBlock) {
    const std::size_t count = std::min(kBlock, all - begin);
    const std::size_t searched = (count + kSearchVectors - 1) / kSearchVectors * kSearchVectors;
    float* left = vectors_.data();
    load(z, length, begin, count, left);
    std::fill(left + count * length, left + searched * length, 0.0f);
    for (std::size_t s = 0; s < shape.stages; ++s) {
      std::uint16_t* codes = codes_.data() + s * kBlock;
      driver_.nearest(book.stage(s), left, searched, codes);
      for (std::size_t v = 0; v < count; ++v) {
        const float* codeword = book.codeword(s, codes[v]);
        for (std::size_t j = 0; j < length; ++j) {
          left[v * length + j] -= codeword[j];
        }
      }
    }
    for (std::size_t v = 0; v < count; ++v) {
      for (std::size_t s = 0; s < shape.stages; ++s) {
        writer.put(codes_[s * kBlock + v]);
      }
    }
  }
  writer.finish();
}

void RowCoder::update(Learner& learner, const Rows& z) {
  const std::size_t length = learner.codebook().shape().subvector;
  const std::size_t all = z.tokens * subvectors(z.dim, length);
  measure(z);
  vectors_.resize(std::max(vectors_.size(), (all + kSearchVectors) * length));
  load(z, length, 0, all, vectors_.data());
  learner.update(vectors_.data(), all, driver_);
}

void decode(const Codebook& book, const std::uint8_t* data, std::uint64_t bytes, void* out, DType dtype,
            std::size_t tokens, std::size_t dim) {
  check_encoded(book.shape(), data, bytes, tokens, dim);
  switch (dtype) {
    case DType::kF32:
      return decode_as<F32>(book, data, out, tokens, dim);
    case DType::kBF16:
      return decode_as<BF16>(book, data, out, tokens, dim);
    case DType::kF16:
      return decode_as<F16>(book, data, out, tokens, dim);
    default:
      refuse(dtype);
  }
}

}  // namespace gcomm::mapl
