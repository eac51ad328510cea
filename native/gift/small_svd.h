// Singular value decomposition of a small square matrix by one-sided Jacobi rotations in float64.
#pragma once

#include <cstddef>
#include <vector>

namespace gcomm::gift {

class SmallSvd {
 public:
  explicit SmallSvd(std::size_t size);

  // The matrix to decompose, column j at column(j); run() destroys it.
  double* column(std::size_t j) { return &a_[j * size_]; }
  // a = left diag(values) right^T, values descending, equal ones in the order of their columns.
  void run();

  const std::vector<double>& values() const { return values_; }
  // size x size, row-major. A column of left that belongs to the value 0 is zero.
  const double* left() const { return left_.data(); }
  const double* right() const { return right_.data(); }

 private:
  bool rotate(std::size_t p, std::size_t q);

  std::size_t size_;
  std::vector<double> a_;  // by columns, as v_
  std::vector<double> v_;
  std::vector<double> norms_;
  std::vector<std::size_t> order_;
  std::vector<double> values_;
  std::vector<double> left_;
  std::vector<double> right_;
};

}  // namespace gcomm::gift
