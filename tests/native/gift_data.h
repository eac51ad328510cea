// Matrices for the tests of the gift room.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/float.h"
#include "gift/products.h"

namespace gift_test {

using gcomm::DType;
using namespace gcomm::gift;

// Sums of four uniform numbers, centred: near enough to normal.
inline std::vector<float> normals(std::size_t count, std::uint64_t seed, float size) {
  std::vector<float> x(count);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& v : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::uint64_t word = state ^ (state >> 29);
    word *= 0xBF58476D1CE4E5B9u;
    word ^= word >> 32;
    float sum = 0.0f;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(word >> (16 * part) & 0xFFFF) - 32767.5f;
    }
    v = sum * 0x1p-15f * size;
  }
  return x;
}

// rows x padded_rank(rank), zero from column `rank` on.
inline std::vector<float> skinny(std::size_t rows, std::size_t rank, std::uint64_t seed) {
  const std::size_t padded = padded_rank(rank);
  std::vector<float> x = normals(rows * padded, seed, 0.3f);
  for (std::size_t e = 0; e < x.size(); ++e) {
    x[e] = e % padded < rank ? x[e] : 0.0f;
  }
  return x;
}

// A matrix of any codable dtype, `offset` bytes off any alignment.
class Matrix {
 public:
  Matrix(std::size_t rows, std::size_t cols, DType dtype, std::size_t offset, std::uint64_t seed)
      : Matrix(rows, cols, normals(rows * cols, seed, 1.0f), dtype, offset) {}
  Matrix(std::size_t rows, std::size_t cols, const std::vector<float>& values, DType dtype = DType::kF32,
         std::size_t offset = 0)
      : rows_(rows), cols_(cols), dtype_(dtype), offset_(offset), bytes_(rows * cols * 4 + offset) {
    for (std::size_t e = 0; e < rows * cols; ++e) {
      set(e, values[e]);
    }
  }
  void set(std::size_t e, float value) {
    if (dtype_ == DType::kF32) {
      std::memcpy(bytes_.data() + offset_ + 4 * e, &value, 4);
    } else {
      const std::uint16_t half =
          dtype_ == DType::kBF16 ? gcomm::float_to_bf16(value) : gcomm::float_to_f16(value);
      std::memcpy(bytes_.data() + offset_ + 2 * e, &half, 2);
    }
  }
  float at(std::size_t i, std::size_t j) const {
    const std::size_t e = i * cols_ + j;
    if (dtype_ == DType::kF32) {
      float value = 0.0f;
      std::memcpy(&value, bytes_.data() + offset_ + 4 * e, 4);
      return value;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, bytes_.data() + offset_ + 2 * e, 2);
    return dtype_ == DType::kBF16 ? gcomm::bf16_to_float(half) : gcomm::f16_to_float(half);
  }
  MatrixView view() const {
    MatrixView g;
    g.data = bytes_.data() + offset_;
    g.dtype = dtype_;
    g.rows = rows_;
    g.cols = cols_;
    return g;
  }

 private:
  std::size_t rows_;
  std::size_t cols_;
  DType dtype_;
  std::size_t offset_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace gift_test
