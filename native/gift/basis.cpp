#include "gift/basis.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/fp_env.h"
#include "base/philox.h"
#include "gift/cpu/driver.h"
#include "gift/orthonormalise.h"
#include "gift/small_svd.h"

namespace gcomm::gift {
namespace {

constexpr std::uint32_t kStartTag = 0x54464947u;  // "GIFT"
constexpr int kColdRounds = 2;

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kInvalid, "basis: " + text); }

std::string shape_text(std::size_t rows, std::size_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

double squared_norm_of(const MatrixView& g, codec::Isa isa) {
  double lane[kSquareLanes] = {};
  find_driver(isa).add_squares(g, lane);
  for (std::size_t width = kSquareLanes / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) {
      lane[j] += lane[j + width];
    }
  }
  return lane[0];
}

// The power of two that brings the norm near 1, as far as fp32 columns of length 1 can bear it: the products of
// a huge matrix don't overflow, those of a tiny one keep their digits.
double scale_for(double squared_norm) {
  double scale = 1.0;
  for (; squared_norm * scale * scale >= 4.0 && scale > 0x1p-60; scale /= 2.0) {
  }
  for (; squared_norm * scale * scale < 1.0 && scale < 0x1p100; scale *= 2.0) {
  }
  return scale;
}

void scale_into(float* dst, const float* src, std::size_t count, float scale) {
  for (std::size_t e = 0; e < count; ++e) {
    dst[e] = src[e] * scale;
  }
}

// dst (cols x rows) from src (rows x cols), in squares that the cache holds.
void transpose(float* dst, const float* src, std::size_t rows, std::size_t cols) {
  constexpr std::size_t kSide = 32;
  for (std::size_t j0 = 0; j0 < cols; j0 += kSide) {
    for (std::size_t i0 = 0; i0 < rows; i0 += kSide) {
      for (std::size_t j = j0; j < std::min(j0 + kSide, cols); ++j) {
        for (std::size_t i = i0; i < std::min(i0 + kSide, rows); ++i) {
          dst[j * rows + i] = src[i * cols + j];
        }
      }
    }
  }
}

}  // namespace

struct Basis::Work {
  Work(std::size_t rows, std::size_t cols, std::size_t rank)
      : left(4 * cols * padded_rank(rank)),
        v(left.size()),
        right(4 * rows * padded_rank(rank)),
        u(right.size()),
        scaled(std::max(left.size(), right.size())),
        core(rank * rank),
        orthonormaliser(rank),
        svd(rank) {}

  AlignedBuffer left;    // G^T U by columns; then the next V
  AlignedBuffer v;       // orthonormal
  AlignedBuffer right;   // G V; then the next U
  AlignedBuffer u;       // orthonormal
  AlignedBuffer scaled;  // u or v times the scale
  std::vector<double> core;
  Orthonormaliser orthonormaliser;
  SmallSvd svd;
  std::size_t u_found = 0;
  std::size_t v_found = 0;
};

Basis::Basis(std::size_t rows, std::size_t cols, std::size_t rank) : rows_(rows), cols_(cols), max_rank_(rank) {
  if (rank == 0 || rank >= std::min(rows, cols)) {
    refuse("rank " + std::to_string(rank) + " for a matrix of " + shape_text(rows, cols) +
           "; expected at least 1 and less than the smaller side");
  }
  u_ = AlignedBuffer(4 * rows * padded());
  v_ = AlignedBuffer(4 * cols * padded());
  std::fill_n(floats(u_), rows * padded(), 0.0f);
  std::fill_n(floats(v_), cols * padded(), 0.0f);
  values_.reserve(rank);
  digest_ = compute_digest();
}
Basis::Basis(Basis&&) noexcept = default;
Basis& Basis::operator=(Basis&&) noexcept = default;
Basis::~Basis() = default;

bool Basis::update(const MatrixView& g, int rounds, codec::Isa isa) {
  if (g.rows != rows_ || g.cols != cols_) {
    refuse("a matrix of " + shape_text(g.rows, g.cols) + "; expected " + shape_text(rows_, cols_));
  }
  if (!dtype_info(g.dtype).codable) {
    refuse(std::string("dtype ") + dtype_info(g.dtype).name + "; expected float32, bfloat16 or float16");
  }
  if (rounds < 1) {
    refuse(std::to_string(rounds) + " rounds; expected at least 1");
  }
  const FpEnvironment environment;
  const double squared_norm = squared_norm_of(g, isa);
  // A square of a finite fp32 number, and any sum of them, is finite in float64.
  if (!(squared_norm > 0.0) || !std::isfinite(squared_norm)) {
    return false;
  }
  if (work_ == nullptr) {
    work_ = std::make_unique<Work>(rows_, cols_, max_rank_);
  }
  Work& work = *work_;
  const double scale = scale_for(squared_norm);
  if (rank() < max_rank_) {
    start(floats(work.u), work);
    rounds = std::max(rounds, kColdRounds);
  } else {
    std::copy_n(u(), rows_ * padded(), floats(work.u));
  }
  iterate(g, rounds, static_cast<float>(scale), isa, work);
  const std::size_t found = turn(scale, work);
  if (found == 0) {
    return false;
  }
  std::swap(u_, work.right);
  std::swap(v_, work.left);
  values_.assign(work.svd.values().begin(), work.svd.values().begin() + static_cast<std::ptrdiff_t>(found));
  for (double& value : values_) {
    value /= scale;
  }
  squared_norm_ = squared_norm;
  digest_ = compute_digest();
  return true;
}

// Uniform in [-1, 1) from the shape and the position alone, orthonormalised.
void Basis::start(float* out, Work& work) const {
  const std::uint64_t key = rows_ + (static_cast<std::uint64_t>(cols_) << 32);
  PhiloxBlock block = {};
  for (std::size_t i = 0; i < rows_; ++i) {
    for (std::size_t k = 0; k < max_rank_; ++k) {
      const std::uint64_t e = i * max_rank_ + k;
      if (e % 4 == 0) {
        block = philox4x32_10(
            key, {{static_cast<std::uint32_t>(e / 4), static_cast<std::uint32_t>(e / 4 >> 32), 0, kStartTag}});
      }
      out[i * padded() + k] = static_cast<float>(static_cast<std::int32_t>(block.word[e % 4]) >> 8) * 0x1p-23f;
    }
  }
  work.orthonormaliser.run({out, rows_, padded()}, out);
}

// V <- orth(G^T U), U <- orth(G V), with G times the scale; leaves G V in work.right.
void Basis::iterate(const MatrixView& g, int rounds, float scale, codec::Isa isa, Work& work) const {
  float* scaled = floats(work.scaled);
  float* left = floats(work.left);
  for (int round = 0; round < rounds; ++round) {
    scale_into(scaled, floats(work.u), rows_ * padded(), scale);
    std::fill_n(left, cols_ * padded(), 0.0f);
    products(g, 0, rows_, max_rank_, scaled, left, nullptr, nullptr, isa);
    transpose(floats(work.v), left, padded(), cols_);
    work.v_found = work.orthonormaliser.run({floats(work.v), cols_, padded()}, floats(work.v));
    scale_into(scaled, floats(work.v), cols_ * padded(), scale);
    products(g, 0, rows_, max_rank_, nullptr, nullptr, scaled, floats(work.right), isa);
    work.u_found = work.orthonormaliser.run({floats(work.right), rows_, padded()}, floats(work.u));
  }
}

// The core's singular vectors turn U and V (into work.right and work.left); returns how many to keep.
std::size_t Basis::turn(double scale, Work& work) const {
  const Skinny orthonormal = {floats(work.u), rows_, padded()};
  inner_products(orthonormal, work.u_found, {floats(work.right), rows_, padded()}, work.v_found,
                 work.core.data());
  for (std::size_t b = 0; b < max_rank_; ++b) {
    for (std::size_t a = 0; a < max_rank_; ++a) {
      const bool inside = a < work.u_found && b < work.v_found;
      work.svd.column(b)[a] = inside ? work.core[a * work.v_found + b] : 0.0;
    }
  }
  work.svd.run();
  const double side = static_cast<double>(std::max(rows_, cols_));
  const double noise = 0x1p-24 * std::max(16.0, std::sqrt(side));
  const std::vector<double>& values = work.svd.values();
  std::size_t found = 0;
  // The first must be a number that survives the division by the scale.
  while (found < max_rank_ && values[found] / scale > 0.0 && values[found] > noise * values[0]) {
    ++found;
  }
  work.orthonormaliser.multiply(orthonormal, nullptr, max_rank_, work.svd.left(), max_rank_, false,
                                floats(work.right));
  work.orthonormaliser.multiply({floats(work.v), cols_, padded()}, nullptr, max_rank_, work.svd.right(),
                                max_rank_, false, floats(work.left));
  fix_signs(floats(work.right), floats(work.left), found);
  return found;
}

// Zeros from column `found` on; in the others the largest entry of u, the first of equals, becomes positive.
void Basis::fix_signs(float* u, float* v, std::size_t found) const {
  for (std::size_t k = 0; k < max_rank_; ++k) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < rows_; ++i) {
      const float x = u[i * padded() + k];
      largest = std::fabs(x) > std::fabs(largest) ? x : largest;
    }
    const float sign = k >= found ? 0.0f : largest < 0.0f ? -1.0f : 1.0f;
    for (std::size_t i = 0; i < rows_; ++i) {
      u[i * padded() + k] = k < found ? sign * u[i * padded() + k] : 0.0f;
    }
    for (std::size_t j = 0; j < cols_; ++j) {
      v[j * padded() + k] = k < found ? sign * v[j * padded() + k] : 0.0f;
    }
  }
}

}  // namespace gcomm::gift
