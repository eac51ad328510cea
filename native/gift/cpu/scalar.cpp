// The chains as they are written down, element by element.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/float.h"
#include "gift/cpu/driver.h"

namespace gcomm::gift {
namespace {

float element(const MatrixView& g, std::size_t at) {
  float x = 0.0f;
  if (g.dtype == DType::kF32) {
    std::memcpy(&x, static_cast<const std::uint8_t*>(g.data) + 4 * at, 4);
  } else {
    std::uint16_t half = 0;
    std::memcpy(&half, static_cast<const std::uint8_t*>(g.data) + 2 * at, 2);
    x = g.dtype == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
  }
  if (g.zero_nonfinite && !is_finite(x)) {
    x = 0.0f;
  }
  if (g.addend != nullptr && is_finite(x) && is_finite(g.addend[at])) {
    const float sum = x + g.addend[at];
    x = is_finite(sum) ? sum : std::copysign(FLT_MAX, sum);
  }
  return x;
}

void products(const MatrixView& g, std::size_t begin, std::size_t end, std::size_t padded, const float* u,
              float* left, const float* v, float* right) {
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t k = 0; right != nullptr && k < padded; ++k) {
      right[i * padded + k] = 0.0f;
    }
    for (std::size_t j = 0; j < g.cols; ++j) {
      const float x = element(g, i * g.cols + j);
      for (std::size_t k = 0; left != nullptr && k < padded; ++k) {
        left[k * g.cols + j] = std::fma(x, u[i * padded + k], left[k * g.cols + j]);
      }
      for (std::size_t k = 0; right != nullptr && k < padded; ++k) {
        right[i * padded + k] = std::fma(x, v[j * padded + k], right[i * padded + k]);
      }
    }
  }
}

void rank_update(float* x, std::uint64_t first, std::size_t count, std::size_t cols, std::size_t terms,
                 const float* l, const float* r) {
  for (std::size_t e = 0; e < count; ++e) {
    const std::size_t i = (first + e) / cols;
    const std::size_t j = (first + e) % cols;
    float sum = x[e];
    for (std::size_t k = 0; k < terms; ++k) {
      sum = std::fma(l[i * terms + k], r[k * cols + j], sum);
    }
    x[e] = sum;
  }
}

void add_squares(const MatrixView& g, double* lane) {
  for (std::size_t i = 0; i < g.rows; ++i) {
    for (std::size_t j = 0; j < g.cols; ++j) {
      const double x = element(g, i * g.cols + j);
      lane[j % kSquareLanes] += x * x;  // the square is exact
    }
  }
}

}  // namespace

const Driver& scalar_driver() {
  static constexpr Driver kDriver = {products, rank_update, add_squares};
  return kDriver;
}

}  // namespace gcomm::gift
