// The basis: orthonormal, with the right spectrum, for matrices of every sort.
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "gift/basis.h"
#include "gift/orthonormalise.h"
#include "gift_checks.h"

namespace {

using namespace gift_test;
using gcomm::Code;
using gcomm::codec::Isa;

// All singular values: eigenvalues of the smaller Gram matrix by two-sided Jacobi would square the condition;
// so the columns of the whole matrix are made orthogonal to one another instead, by plane rotations.
std::vector<double> all_singular_values(const Matrix& x, std::size_t rows, std::size_t cols) {
  const bool wide = cols > rows;
  const std::size_t n = wide ? rows : cols;
  const std::size_t m = wide ? cols : rows;
  std::vector<std::vector<double>> columns(n, std::vector<double>(m));
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < m; ++i) {
      columns[j][i] = static_cast<double>(wide ? x.at(j, i) : x.at(i, j));
    }
  }
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        std::vector<double>& a = columns[p];
        std::vector<double>& b = columns[q];
        const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
        const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
        const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
        const double angle = 0.5 * std::atan2(2 * ab, aa - bb);
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        for (std::size_t i = 0; i < m; ++i) {
          const double old = a[i];
          a[i] = c * old + s * b[i];
          b[i] = c * b[i] - s * old;
        }
      }
    }
  }
  std::vector<double> values;
  for (const auto& column : columns) {
    values.push_back(std::sqrt(std::inner_product(column.begin(), column.end(), column.begin(), 0.0)));
  }
  std::sort(values.rbegin(), values.rend());
  return values;
}

// ||G - U diag(s) V^T||_F / ||G||_F in float64.
double remainder(const Basis& basis, const Matrix& x) {
  const std::size_t padded = padded_rank(basis.max_rank());
  double lost = 0;
  double all = 0;
  for (std::size_t i = 0; i < basis.rows(); ++i) {
    for (std::size_t j = 0; j < basis.cols(); ++j) {
      double left = static_cast<double>(x.at(i, j));
      all += left * left;
      for (std::size_t k = 0; k < basis.rank(); ++k) {
        left -= static_cast<double>(basis.u()[i * padded + k]) * basis.singular_values()[k] *
                static_cast<double>(basis.v()[j * padded + k]);
      }
      lost += left * left;
    }
  }
  return std::sqrt(lost / all);
}

// Leading values against those of the whole matrix. An fp32 chain of n products leaves about 2^-24 sqrt(n) of
// the largest value in each; 1e-6 is that at n = 256.
void check_spectrum() {
  for (const auto& [rows, cols, rank] :
       {std::array<std::size_t, 3>{60, 40, 7}, {33, 90, 12}, {17, 17, 1}, {9, 200, 8}}) {
    const Matrix x(rows, cols, with_spectrum(rows, cols, geometric(std::min(rows, cols), 0.5), rows));
    const std::vector<double> exact = all_singular_values(x, rows, cols);
    Basis basis(rows, cols, rank);
    CHECK(basis.update(x.view(), 12, Isa::kAvx2));
    CHECK(basis.rank() == rank);
    check_orthonormal(basis, "spectrum");
    for (std::size_t k = 0; k < basis.rank(); ++k) {
      CHECK(std::fabs(basis.singular_values()[k] - exact[k]) <= 1e-6 * exact[0], "value %zu: %.9g, exact %.9g",
            k, basis.singular_values()[k], exact[k]);
    }
    double squares = 0;
    for (const double s : exact) {
      squares += s * s;
    }
    CHECK(std::fabs(basis.squared_norm() - squares) <= 1e-12 * squares, "norm %.17g, %.17g",
          basis.squared_norm(), squares);
    // Nothing of that rank comes nearer than the exact decomposition, and ours nearly does.
    double tail = 0;
    for (std::size_t k = rank; k < exact.size(); ++k) {
      tail += exact[k] * exact[k];
    }
    CHECK(remainder(basis, x) <= std::sqrt(tail / squares) * (1 + 1e-4) + 2e-6);
  }
}

void check_low_rank() {
  // A condition of 1e5 among eight directions, then one round from cold (two are done), for each orientation.
  std::vector<double> s = geometric(8, std::pow(1e-5, 1.0 / 7));
  for (const auto& [rows, cols] : {std::array<std::size_t, 2>{300, 120}, {120, 300}, {64, 64}}) {
    const Matrix x(rows, cols, with_spectrum(rows, cols, s, 3 * rows));
    Basis basis(rows, cols, 8);
    CHECK(basis.update(x.view(), 1, Isa::kAvx2));
    check_orthonormal(basis, "condition 1e5");
    CHECK(basis.rank() == 8, "condition 1e5: rank %zu", basis.rank());
    CHECK(remainder(basis, x) <= 1e-6, "condition 1e5: %g", remainder(basis, x));
    for (std::size_t k = 0; k < basis.rank(); ++k) {
      CHECK(std::fabs(basis.singular_values()[k] - s[k]) <= 1e-6, "value %zu: %g", k,
            basis.singular_values()[k]);
    }
  }
  // Lower rank than asked for: the rest is dropped, not noise.
  for (const std::size_t true_rank : {std::size_t{1}, std::size_t{3}, std::size_t{7}}) {
    const Matrix x(200, 150, with_spectrum(200, 150, geometric(true_rank, 0.3), true_rank));
    Basis basis(200, 150, 16);
    for (int again = 0; again < 3; ++again) {
      CHECK(basis.update(x.view(), 1, Isa::kAvx2));
      CHECK(basis.rank() == true_rank && remainder(basis, x) <= 1e-6, "rank %zu of %zu, %g", basis.rank(),
            true_rank, remainder(basis, x));
      check_orthonormal(basis, "low rank");
    }
  }
  // A third direction above the bound of 9.5e-7 is kept, one below it is dropped.
  for (const double third : {3e-6, 6e-7}) {
    const Matrix x(200, 150, with_spectrum(200, 150, {1.0, 0.3, third}, 77));
    Basis basis(200, 150, 3);
    CHECK(basis.update(x.view(), 3, Isa::kAvx2));
    CHECK(basis.rank() == (third > 9.5e-7 ? 3 : 2), "third %g: rank %zu", third, basis.rank());
  }
  // Exactly representable: the rank is found exactly.
  const Matrix constant(300, 70, std::vector<float>(300 * 70, 0.1f));
  Basis basis(300, 70, 8);
  CHECK(basis.update(constant.view(), 1, Isa::kAvx2));
  CHECK(basis.rank() == 1, "constant: rank %zu", basis.rank());
  CHECK(remainder(basis, constant) <= 1e-6);
  const double expected = static_cast<double>(0.1f) * std::sqrt(300.0 * 70.0);
  CHECK(std::fabs(basis.singular_values()[0] - expected) <= 1e-5 * expected);
  std::vector<float> single(50 * 60, 0.0f);
  single[17 * 60 + 33] = -2.5f;
  const Matrix one(50, 60, single);
  Basis spike(50, 60, 4);
  CHECK(spike.update(one.view(), 1, Isa::kScalar));
  CHECK(spike.rank() == 1 && std::fabs(spike.singular_values()[0] - 2.5) < 1e-6, "rank %zu", spike.rank());
  CHECK(spike.u()[17 * 8] == 1.0f && spike.v()[33 * 8] == -1.0f);
  // The smallest.
  const Matrix two(2, 2, {3.0f, 0.0f, 4.0f, 5.0f});
  Basis smallest(2, 2, 1);
  CHECK(smallest.update(two.view(), 20, Isa::kAvx2));
  CHECK(smallest.rank() == 1 && std::fabs(smallest.singular_values()[0] - std::sqrt(45.0)) < 1e-5);
}

// Columns that differ in the sixth digit: one Cholesky factorisation of their Gram matrix is not enough. And
// columns that depend on others are dropped.
void check_orthonormaliser() {
  constexpr std::size_t kRows = 500;
  constexpr std::size_t kColumns = 6;
  std::vector<float> a = skinny(kRows, kColumns, 61);
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t k = 1; k < kColumns; ++k) {
      a[8 * i + k] = a[8 * i] + 2e-6f * a[8 * i + k];
    }
  }
  Orthonormaliser work(kColumns);
  std::vector<float> q(a.size());
  CHECK(work.run({a.data(), kRows, 8}, q.data()) == kColumns);
  check_orthonormal(q.data(), kRows, kColumns, kColumns, "near columns");
  for (std::size_t i = 0; i < kRows; ++i) {
    a[8 * i + 2] = a[8 * i + 4];
    a[8 * i + 3] = 0.0f;
  }
  CHECK(work.run({a.data(), kRows, 8}, a.data()) == kColumns - 2);
  check_orthonormal(a.data(), kRows, kColumns - 2, kColumns, "dependent columns");
}

// A warm start follows: one round a call comes to where many rounds come at once, on a slow spectrum.
void check_warm_start() {
  const Matrix x(90, 70, with_spectrum(90, 70, geometric(70, 0.9), 4));
  Basis basis(90, 70, 8);
  Basis at_once(90, 70, 8);
  CHECK(at_once.update(x.view(), 60, Isa::kAvx2));
  double first = 0;
  double last = 0;
  for (int call = 0; call < 60; ++call) {
    CHECK(basis.update(x.view(), 1, Isa::kAvx2));
    last = remainder(basis, x);
    first = call == 0 ? last : first;
  }
  CHECK(last < first, "%g then %g", first, last);
  CHECK(std::fabs(last - remainder(at_once, x)) < 1e-6);
  for (std::size_t k = 0; k < 8; ++k) {
    CHECK(std::fabs(basis.singular_values()[k] - at_once.singular_values()[k]) < 1e-5);
  }
  // On a matrix a little different, one warm round beats two cold ones.
  std::vector<float> moved = with_spectrum(90, 70, geometric(70, 0.9), 4);
  const std::vector<float> noise = normals(moved.size(), 8, 1e-4f);
  for (std::size_t e = 0; e < moved.size(); ++e) {
    moved[e] += noise[e];
  }
  const Matrix y(90, 70, moved);
  Basis cold(90, 70, 8);
  CHECK(cold.update(y.view(), 1, Isa::kAvx2) && basis.update(y.view(), 1, Isa::kAvx2));
  CHECK(remainder(basis, y) < remainder(cold, y), "warm %g, cold %g", remainder(basis, y), remainder(cold, y));
}

// One round from cold is two.
void check_cold_rounds() {
  const Matrix x(40, 30, with_spectrum(40, 30, geometric(30, 0.9), 5));
  std::uint64_t digests[4];
  for (int rounds = 1; rounds <= 3; ++rounds) {
    Basis basis(40, 30, 4);
    CHECK(basis.update(x.view(), rounds, Isa::kAvx2));
    digests[rounds] = basis.digest();
  }
  CHECK(digests[1] == digests[2] && digests[2] != digests[3]);
}

// From denormals to the largest: the same directions, the values in proportion.
void check_sizes() {
  const std::vector<float> values = with_spectrum(40, 50, geometric(20, 0.5), 6);
  float largest = 0.0f;
  for (const float v : values) {
    largest = std::max(largest, std::fabs(v));
  }
  Basis reference(40, 50, 4);
  CHECK(reference.update(Matrix(40, 50, values).view(), 8, Isa::kAvx2));
  for (const double size :
       {0x1p-100, 0x1p-20, 0x1p60, static_cast<double>(FLT_MAX) / static_cast<double>(largest)}) {
    std::vector<float> scaled;
    for (const float v : values) {
      scaled.push_back(
          static_cast<float>(std::min(size * static_cast<double>(v), static_cast<double>(FLT_MAX))));
    }
    Basis basis(40, 50, 4);
    CHECK(basis.update(Matrix(40, 50, scaled).view(), 8, Isa::kAvx2));
    check_orthonormal(basis, "size");
    CHECK(basis.rank() == 4, "size %g: rank %zu", size, basis.rank());
    for (std::size_t k = 0; k < basis.rank(); ++k) {
      CHECK(std::fabs(basis.singular_values()[k] / size - reference.singular_values()[k]) <= 2e-6, "size %g",
            size);
    }
  }
  // Every element the largest there is; every element the smallest.
  for (const float v : {FLT_MAX, -FLT_MAX, 0x1p-149f}) {
    const Matrix x(100, 80, std::vector<float>(8000, v));
    Basis basis(100, 80, 3);
    CHECK(basis.update(x.view(), 1, Isa::kAvx2) && basis.rank() == 1, "%g: rank %zu", static_cast<double>(v),
          basis.rank());
    const double expected = std::fabs(static_cast<double>(v)) * std::sqrt(8000.0);
    CHECK(std::fabs(basis.singular_values()[0] - expected) <= 1e-5 * expected);
  }
}

}  // namespace

int main() {
  check_spectrum();
  check_low_rank();
  check_orthonormaliser();
  check_warm_start();
  check_cold_rounds();
  check_sizes();
  return check::report("gift_basis");
}
