// Matrices of a known spectrum, and what every basis must be.
#pragma once

#include <cmath>
#include <vector>

#include "check.h"
#include "gift/basis.h"
#include "gift_data.h"

namespace gift_test {

// A = Q1 diag(s) Q2^T with random orthonormal Q, in float64, rounded to fp32.
inline std::vector<double> orthonormal(std::size_t rows, std::size_t count, std::uint64_t seed) {
  const std::vector<float> x = normals(rows * count, seed, 1.0f);
  std::vector<double> q(x.begin(), x.end());  // row-major, count a row
  for (int twice = 0; twice < 2; ++twice) {
    for (std::size_t k = 0; k < count; ++k) {
      for (std::size_t l = 0; l <= k; ++l) {
        double dot = 0;
        for (std::size_t i = 0; i < rows; ++i) {
          dot += q[i * count + k] * q[i * count + l];
        }
        for (std::size_t i = 0; i < rows; ++i) {
          q[i * count + k] =
              l < k ? q[i * count + k] - dot * q[i * count + l] : q[i * count + k] / std::sqrt(dot);
        }
      }
    }
  }
  return q;
}
inline std::vector<float> with_spectrum(std::size_t rows, std::size_t cols, const std::vector<double>& s,
                                        std::uint64_t seed) {
  const std::vector<double> a = orthonormal(rows, s.size(), seed);
  const std::vector<double> b = orthonormal(cols, s.size(), seed + 1);
  std::vector<float> x(rows * cols);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < s.size(); ++k) {
        sum += a[i * s.size() + k] * s[k] * b[j * s.size() + k];
      }
      x[i * cols + j] = static_cast<float>(sum);
    }
  }
  return x;
}

inline std::vector<double> geometric(std::size_t count, double ratio) {
  std::vector<double> s(count);
  for (std::size_t k = 0; k < count; ++k) {
    s[k] = std::pow(ratio, static_cast<double>(k));
  }
  return s;
}

// |q_a . q_b - [a = b]| <= 1e-6. The columns are correct to float64 up to their rounding to fp32, twice (once
// before the turn by the core's vectors, once after): each leaves at most 2^-23 in a product of two columns of
// length 1, and the turn by an orthogonal matrix of order r at most sqrt(r) times that of the first.
inline void check_orthonormal(const float* q, std::size_t rows, std::size_t found, std::size_t rank,
                              const char* what) {
  const std::size_t padded = padded_rank(rank);
  for (std::size_t a = 0; a < padded; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double dot = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        dot += static_cast<double>(q[i * padded + a]) * static_cast<double>(q[i * padded + b]);
      }
      if (a < found) {
        CHECK(std::fabs(dot - (a == b ? 1.0 : 0.0)) <= 1e-6, "%s: columns %zu, %zu: %g", what, a, b, dot);
      } else {
        CHECK(dot == 0.0, "%s: column %zu beyond the rank", what, a);
      }
    }
  }
}
inline void check_orthonormal(const Basis& basis, const char* what) {
  check_orthonormal(basis.u(), basis.rows(), basis.rank(), basis.max_rank(), what);
  check_orthonormal(basis.v(), basis.cols(), basis.rank(), basis.max_rank(), what);
  for (std::size_t k = 0; k < basis.rank(); ++k) {
    float largest = 0.0f;
    for (std::size_t i = 0; i < basis.rows(); ++i) {
      const float x = basis.u()[i * padded_rank(basis.max_rank()) + k];
      largest = std::fabs(x) > std::fabs(largest) ? x : largest;
    }
    CHECK(largest > 0.0f, "%s: sign of direction %zu", what, k);
    CHECK(k == 0 || basis.singular_values()[k] <= basis.singular_values()[k - 1]);
  }
}

}  // namespace gift_test
