// Elements of any codable dtype as floats.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/float.h"

namespace gcomm::gift {

inline void load_elements(const void* data, DType dtype, std::uint64_t begin, std::size_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(data) + begin, count * sizeof(float));
    return;
  }
  const auto* halves = static_cast<const std::uint16_t*>(data) + begin;
  if (dtype == DType::kBF16) {
    for (std::size_t i = 0; i < count; ++i) out[i] = bf16_to_float(halves[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = f16_to_float(halves[i]);
  }
}

// The largest magnitude's bits; a NaN's are beyond those of Inf.
inline std::uint32_t largest_bits(const float* values, std::size_t count) {
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = float_bits(values[i]) & 0x7FFFFFFFu;
    top = magnitude > top ? magnitude : top;
  }
  return top;
}

inline bool all_finite(const float* values, std::size_t count) {
  return largest_bits(values, count) < 0x7F800000u;
}

// What a matrix has along a direction travels apart up to this magnitude. Beyond, it stays with the rest: taken
// off and put back it could make Inf of finite elements, as could the sum over ranks. (Below, a product of rank
// r with it is less than half a unit of FLT_MAX, term by term.)
inline constexpr float kMostCoordinate = 0x1p100f;

inline bool all_within(const float* values, std::size_t count, float most) {
  return largest_bits(values, count) <= float_bits(most);
}

// Calls body(row, first column, x, length) for each row's part of the elements [element, element + count).
template <typename Body>
void for_each_row(std::uint64_t element, std::size_t count, std::uint64_t cols, float* x, Body body) {
  while (count > 0) {
    const std::uint64_t row = element / cols;
    const std::uint64_t column = element % cols;
    const std::size_t length = count < cols - column ? count : static_cast<std::size_t>(cols - column);
    body(row, column, x, length);
    element += length;
    x += length;
    count -= length;
  }
}

}  // namespace gcomm::gift
