#include "gift/small_svd.h"

#include <algorithm>
#include <cmath>

namespace gcomm::gift {
namespace {

constexpr int kMaxSweeps = 60;           // fewer than ten happen
constexpr double kOrthogonal = 0x1p-50;  // a cosine below this needs no rotation

double dot(const double* x, const double* y, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += x[i] * y[i];
  }
  return sum;
}

void turn(double* x, double* y, std::size_t n, double cosine, double sine) {
  for (std::size_t i = 0; i < n; ++i) {
    const double a = x[i];
    const double b = y[i];
    x[i] = cosine * a - sine * b;
    y[i] = sine * a + cosine * b;
  }
}

}  // namespace

SmallSvd::SmallSvd(std::size_t size)
    : size_(size),
      a_(size * size),
      v_(size * size),
      norms_(size),
      order_(size),
      values_(size),
      left_(size * size),
      right_(size * size) {}

// Makes columns p and q orthogonal; false where they were.
bool SmallSvd::rotate(std::size_t p, std::size_t q) {
  double* x = column(p);
  double* y = column(q);
  const double xx = dot(x, x, size_);
  const double yy = dot(y, y, size_);
  const double xy = dot(x, y, size_);
  if (!(std::fabs(xy) > kOrthogonal * (std::sqrt(xx) * std::sqrt(yy)))) {
    return false;
  }
  const double zeta = (yy - xx) / (2.0 * xy);
  const double root = std::sqrt(1.0 + zeta * zeta);
  const double tangent = zeta >= 0.0 ? 1.0 / (zeta + root) : -1.0 / (root - zeta);
  const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent);
  const double sine = cosine * tangent;
  turn(x, y, size_, cosine, sine);
  turn(&v_[p * size_], &v_[q * size_], size_, cosine, sine);
  return true;
}

void SmallSvd::run() {
  std::fill(v_.begin(), v_.end(), 0.0);
  for (std::size_t j = 0; j < size_; ++j) {
    v_[j * size_ + j] = 1.0;
  }
  bool turned = true;
  for (int sweep = 0; turned && sweep < kMaxSweeps; ++sweep) {
    turned = false;
    for (std::size_t p = 0; p + 1 < size_; ++p) {
      for (std::size_t q = p + 1; q < size_; ++q) {
        turned |= rotate(p, q);
      }
    }
  }
  for (std::size_t j = 0; j < size_; ++j) {
    norms_[j] = std::sqrt(dot(column(j), column(j), size_));
    order_[j] = j;
  }
  // Insertion sort: stable, and without memory.
  for (std::size_t j = 1; j < size_; ++j) {
    for (std::size_t k = j; k > 0 && norms_[order_[k]] > norms_[order_[k - 1]]; --k) {
      std::swap(order_[k], order_[k - 1]);
    }
  }
  for (std::size_t k = 0; k < size_; ++k) {
    const std::size_t j = order_[k];
    values_[k] = norms_[j];
    for (std::size_t i = 0; i < size_; ++i) {
      left_[i * size_ + k] = norms_[j] > 0.0 ? column(j)[i] / norms_[j] : 0.0;
      right_[i * size_ + k] = v_[j * size_ + i];
    }
  }
}

}  // namespace gcomm::gift
