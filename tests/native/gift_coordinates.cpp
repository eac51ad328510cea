// Scale mode's transform against the dense float64 formula of docs/gift.md, and its inverse.
#include <algorithm>

#include "gift/choice.h"
#include "gift/coordinates.h"
#include "gift_checks.h"

using namespace gift_test;
using namespace gcomm;

namespace {

// d_i = (rest / s_i)^alpha within [2^-10, 1]; rest^2 is the mean square of the other singular values, and a
// hundredth of the mean square of all.
std::vector<double> factors(const Basis& basis, std::size_t rank, double alpha) {
  const auto least = static_cast<double>(std::min(basis.rows(), basis.cols()));
  double inside = 0;
  for (std::size_t k = 0; k < rank; ++k) inside += std::pow(basis.singular_values()[k], 2);
  const double others = std::max(1.0, least - static_cast<double>(rank));
  const double rest =
      std::sqrt(std::max(0.0, basis.squared_norm() - inside) / others + 0.01 * basis.squared_norm() / least);
  std::vector<double> d(rank);
  for (std::size_t k = 0; k < rank; ++k) {
    d[k] = std::clamp(std::pow(rest / basis.singular_values()[k], alpha), 0x1p-10, 1.0);
  }
  return d;
}

// (I + U (D - I) U^T) G (I + V (D - I) V^T)
std::vector<double> dense(const Basis& basis, const std::vector<double>& d, const std::vector<float>& g) {
  const std::size_t m = basis.rows(), n = basis.cols(), width = padded_rank(basis.max_rank());
  std::vector<double> x(g.begin(), g.end());
  for (std::size_t k = 0; k < d.size(); ++k) {
    for (std::size_t j = 0; j < n; ++j) {
      double dot = 0;
      for (std::size_t i = 0; i < m; ++i) {
        dot += static_cast<double>(basis.u()[i * width + k]) * static_cast<double>(g[i * n + j]);
      }
      for (std::size_t i = 0; i < m; ++i)
        x[i * n + j] += static_cast<double>(basis.u()[i * width + k]) * (d[k] - 1) * dot;
    }
  }
  const std::vector<double> half = x;
  for (std::size_t k = 0; k < d.size(); ++k) {
    for (std::size_t i = 0; i < m; ++i) {
      double dot = 0;
      for (std::size_t j = 0; j < n; ++j)
        dot += half[i * n + j] * static_cast<double>(basis.v()[j * width + k]);
      for (std::size_t j = 0; j < n; ++j)
        x[i * n + j] += dot * (d[k] - 1) * static_cast<double>(basis.v()[j * width + k]);
    }
  }
  return x;
}

double norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

// Every chain of k additions of g's elements against columns of length 1 is within k 2^-24 ||g|| of the exact
// sum.
double rounding(const Basis& basis, const std::vector<float>& g) {
  return static_cast<double>(basis.rows() + basis.cols() + 4 * padded_rank(basis.max_rank())) * 0x1p-24 *
         norm(g);
}

void check_transform(std::size_t m, std::size_t n, std::size_t max_rank, std::size_t rank, int eighths,
                     double ratio, codec::Isa isa) {
  const std::size_t least = std::min(m, n);
  Basis basis(m, n, max_rank);
  const Matrix reference(m, n, with_spectrum(m, n, geometric(least, ratio), 3));
  CHECK(basis.update(reference.view(), 3, isa));
  rank = std::min(rank, basis.rank());
  Coordinates coordinates;
  coordinates.set(basis, rank, eighths);
  RankUpdate scratch = coordinates.make_update();
  const std::vector<double> d = factors(basis, rank, eighths / 8.0);
  for (const bool same_directions : {true, false}) {
    const std::vector<float> g =
        same_directions ? with_spectrum(m, n, geometric(least, ratio), 3) : normals(m * n, 8, 1.0f);
    const std::vector<double> expected = dense(basis, d, g);
    std::vector<float> x = g;
    coordinates.damp(x.data(), scratch, isa);
    const double bound = rounding(basis, g);
    for (std::size_t e = 0; e < g.size(); ++e) {
      CHECK(std::fabs(static_cast<double>(x[e]) - expected[e]) <= bound,
            "%zu x %zu rank %zu alpha %d/8: [%zu] %g, not %g", m, n, rank, eighths, e,
            static_cast<double>(x[e]), expected[e]);
    }
    const std::vector<float> damped = x;
    coordinates.raise(x.data(), scratch, isa);
    // What was rounded on the way out grows by 1/d on either side.
    const double growth = 1.0 / (d.back() * d.back()) + 1.0 / (d.front() * d.front());
    for (std::size_t e = 0; e < g.size(); ++e) {
      CHECK(std::fabs(static_cast<double>(x[e] - g[e])) <= 2 * growth * (bound + rounding(basis, damped)),
            "%zu x %zu rank %zu alpha %d/8: [%zu] %g back from %g", m, n, rank, eighths, e,
            static_cast<double>(x[e]), static_cast<double>(g[e]));
    }
  }
  // Along its own leading direction a matrix shrinks by d^2.
  std::vector<float> one(m * n);
  const std::size_t width = padded_rank(max_rank);
  for (std::size_t e = 0; e < one.size(); ++e) one[e] = basis.u()[e / n * width] * basis.v()[e % n * width];
  const double before = norm(one);
  coordinates.damp(one.data(), scratch, isa);
  CHECK(std::fabs(norm(one) / before - d[0] * d[0]) <= 1e-5, "%g, not %g", norm(one) / before, d[0] * d[0]);
  CHECK(ratio < 0.9 ? d[0] < 0.9 : true, "the test damps something: %g", d[0]);
}

// The same bits on every instruction set, and by rows as at once.
void cuts_and_isa() {
  constexpr std::size_t kRows = 37, kCols = 53;
  Basis basis(kRows, kCols, 9);
  const Matrix g(kRows, kCols, with_spectrum(kRows, kCols, geometric(37, 0.8), 3));
  basis.update(g.view(), 3, codec::Isa::kScalar);
  Coordinates scalar, best;
  scalar.set(basis, 9, 3);
  best.set(basis, 9, 3);
  scalar.project(g.view(), codec::Isa::kScalar);
  std::fill(best.left().begin(), best.left().end(), 0.0f);
  for (std::size_t row = 0; row < kRows; row += 10) {
    best.add_rows(g.view(), row, std::min(kRows, row + 10), best.left().data(), codec::best_isa());
  }
  CHECK(scalar.left() == best.left() && scalar.right() == best.right());
  CHECK(scalar.finite());
  Matrix bad(kRows, kCols, with_spectrum(kRows, kCols, geometric(37, 0.8), 3));
  bad.set(100, NAN);
  scalar.project(bad.view(), codec::Isa::kScalar);
  CHECK(!scalar.finite());
}

}  // namespace

int main() {
  for (const int eighths : {1, 3, 4, 8}) {
    check_transform(40, 24, 6, 6, eighths, 0.7, codec::best_isa());
    check_transform(24, 100, 17, 9, eighths, 0.8, codec::Isa::kScalar);
  }
  check_transform(64, 8, 7, 7, 3, 0.5, codec::best_isa());
  check_transform(65, 33, 32, 16, 3, 1.0, codec::best_isa());  // nothing stands out
  check_transform(30, 30, 8, 4, 8, 0.001, codec::best_isa());  // almost of rank 1
  cuts_and_isa();
  return check::report("gift_coordinates");
}
