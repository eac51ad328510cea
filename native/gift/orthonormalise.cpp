#include "gift/orthonormalise.h"

#include <algorithm>
#include <cmath>

namespace gcomm::gift {
namespace {

constexpr double kDropSquared = 0x1p-44;

// Adds rows i .. i + kRows - 1, one after the other.
template <int kRows>
void add_rows(const Skinny& x, std::size_t na, const Skinny& y, std::size_t nb, std::size_t i, double* out) {
  const bool same = x.data == y.data;
  const float* p = x.data + i * x.stride;
  const float* q = y.data + i * y.stride;
  for (std::size_t a = 0; a < na; ++a) {
    double factor[kRows];
    for (int r = 0; r < kRows; ++r) {
      factor[r] = p[static_cast<std::size_t>(r) * x.stride + a];
    }
    for (std::size_t b = same ? a : 0; b < nb; ++b) {
      double sum = out[a * nb + b];
      for (int r = 0; r < kRows; ++r) {
        sum += factor[r] * static_cast<double>(q[static_cast<std::size_t>(r) * y.stride + b]);
      }
      out[a * nb + b] = sum;
    }
  }
}

}  // namespace

void inner_products(const Skinny& x, std::size_t na, const Skinny& y, std::size_t nb, double* out) {
  std::fill_n(out, na * nb, 0.0);
  std::size_t i = 0;
  for (; i + 4 <= x.rows; i += 4) {
    add_rows<4>(x, na, y, nb, i, out);
  }
  for (; i < x.rows; ++i) {
    add_rows<1>(x, na, y, nb, i, out);
  }
}

Orthonormaliser::Orthonormaliser(std::size_t columns)
    : columns_(columns),
      gram_(columns * columns),
      factor_(columns * columns),
      inverse_(columns * columns),
      row_(2 * columns),
      order_(columns) {}

std::size_t Orthonormaliser::run(const Skinny& a, float* q) {
  const std::size_t found = pass(a, columns_, q);
  return pass({q, a.rows, a.stride}, found, q);
}

std::size_t Orthonormaliser::pass(const Skinny& a, std::size_t columns, float* q) {
  inner_products(a, columns, a, columns, gram_.data());
  const std::size_t found = factor(columns);
  invert(found, columns);
  multiply(a, order_.data(), found, inverse_.data(), found, true, q);
  return found;
}

// R with R^T R = the Gram matrix in the order of the pivots; row k of factor_ is R[k], by original column.
std::size_t Orthonormaliser::factor(std::size_t columns) {
  std::vector<std::size_t>& order = order_;
  for (std::size_t a = 0; a < columns; ++a) {
    order[a] = a;
    for (std::size_t b = 0; b < a; ++b) {
      gram_[a * columns + b] = gram_[b * columns + a];
    }
  }
  double largest = 0.0;
  for (std::size_t k = 0; k < columns; ++k) {
    std::size_t best = k;
    for (std::size_t c = k + 1; c < columns; ++c) {
      const double here = gram_[order[c] * columns + order[c]];
      const double there = gram_[order[best] * columns + order[best]];
      best = here > there || (here == there && order[c] < order[best]) ? c : best;
    }
    const double pivot = gram_[order[best] * columns + order[best]];
    largest = k == 0 ? pivot : largest;
    if (!(pivot > kDropSquared * largest)) {
      return k;
    }
    std::swap(order[k], order[best]);
    const double root = std::sqrt(pivot);
    double* row = &factor_[k * columns];
    row[order[k]] = root;
    for (std::size_t c = k + 1; c < columns; ++c) {
      row[order[c]] = gram_[order[k] * columns + order[c]] / root;
    }
    for (std::size_t c = k + 1; c < columns; ++c) {
      for (std::size_t d = k + 1; d < columns; ++d) {
        gram_[order[c] * columns + order[d]] -= row[order[c]] * row[order[d]];
      }
    }
  }
  return columns;
}

// By columns, from the diagonal up: T[l][k] = -(sum over l < m <= k of R[l][m] T[m][k], m ascending) / R[l][l].
void Orthonormaliser::invert(std::size_t found, std::size_t columns) {
  for (std::size_t k = 0; k < found; ++k) {
    inverse_[k * found + k] = 1.0 / factor_[k * columns + order_[k]];
    for (std::size_t l = k; l-- > 0;) {
      double sum = 0.0;
      for (std::size_t m = l + 1; m <= k; ++m) {
        sum += factor_[l * columns + order_[m]] * inverse_[m * found + k];
      }
      inverse_[l * found + k] = -sum / factor_[l * columns + order_[l]];
    }
  }
}

void Orthonormaliser::multiply(const Skinny& src, const std::size_t* order, std::size_t inner, const double* m,
                               std::size_t width, bool upper, float* dst) {
  double* x = row_.data();
  double* sum = row_.data() + columns_;
  for (std::size_t i = 0; i < src.rows; ++i) {
    const float* from = src.data + i * src.stride;
    float* to = dst + i * src.stride;
    for (std::size_t l = 0; l < inner; ++l) {
      x[l] = from[order == nullptr ? l : order[l]];
    }
    std::fill_n(sum, width, 0.0);
    for (std::size_t l = 0; l < inner; ++l) {
      for (std::size_t k = upper ? l : 0; k < width; ++k) {
        sum[k] += x[l] * m[l * width + k];
      }
    }
    for (std::size_t k = 0; k < width; ++k) {
      to[k] = static_cast<float>(sum[k]);
    }
    std::fill(to + width, to + src.stride, 0.0f);
  }
}

}  // namespace gcomm::gift
