#include "gnmr/values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/float.h"

namespace gcomm::gnmr {
namespace {

constexpr std::size_t kTile = 4096;
constexpr std::size_t kLanes = 8;

struct F32 {
  using Storage = float;
  static float load(float value) { return value; }
  static float store(float value) { return value; }
};
struct Bf16 {
  using Storage = std::uint16_t;
  static float load(std::uint16_t value) { return bf16_to_float(value); }
  static std::uint16_t store(float value) { return float_to_bf16(value); }
};
struct F16 {
  using Storage = std::uint16_t;
  static float load(std::uint16_t value) { return f16_to_float(value); }
  static std::uint16_t store(float value) { return float_to_f16(value); }
};

// Memory may lie at any address.
template <typename Element>
typename Element::Storage read(const void* data, std::size_t i) {
  typename Element::Storage value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof value, sizeof value);
  return value;
}

template <typename Element>
double sum_of_squares(const void* data, std::size_t count) {
  double total = 0;
  for (std::size_t begin = 0; begin < count; begin += kTile) {
    const std::size_t end = std::min(begin + kTile, count);
    double sums[kLanes] = {};
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      // Loaded at once, which compilers turn into vectors; one by one they don't.
      typename Element::Storage values[kLanes];
      std::memcpy(values, static_cast<const char*>(data) + i * sizeof values[0], sizeof values);
      double squares[kLanes];
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const double value = Element::load(values[lane]);
        squares[lane] = value * value;
      }
      for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += squares[lane];
    }
    for (std::size_t lane = 0; i < end; ++i, ++lane) {
      const double value = Element::load(read<Element>(data, i));
      sums[lane] += value * value;
    }
    total += ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  return total;
}

template <typename Element>
void scale_all(void* data, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    const double value = Element::load(read<Element>(data, i));
    const auto result = Element::store(static_cast<float>(value * factor));
    std::memcpy(static_cast<char*>(data) + i * sizeof result, &result, sizeof result);
  }
}

[[noreturn]] void unsupported() {
  throw Error(Code::kInvalid, "dtype: norms are of float32, bfloat16 and float16");
}

}  // namespace

double norm(const void* data, DType dtype, std::size_t count) {
  switch (dtype) {
    case DType::kF32:
      return std::sqrt(sum_of_squares<F32>(data, count));
    case DType::kBF16:
      return std::sqrt(sum_of_squares<Bf16>(data, count));
    case DType::kF16:
      return std::sqrt(sum_of_squares<F16>(data, count));
    default:
      unsupported();
  }
}

void scale(void* data, DType dtype, std::size_t count, double factor) {
  if (factor == 0) {
    std::memset(data, 0, count * dtype_size(dtype));
    return;
  }
  switch (dtype) {
    case DType::kF32:
      return scale_all<F32>(data, count, factor);
    case DType::kBF16:
      return scale_all<Bf16>(data, count, factor);
    case DType::kF16:
      return scale_all<F16>(data, count, factor);
    default:
      unsupported();
  }
}

}  // namespace gcomm::gnmr
