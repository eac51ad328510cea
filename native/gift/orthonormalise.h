// Orthonormal columns, and sums over the rows of skinny matrices, in float64. No fused multiply-adds, every sum
// in one order: docs/wire-format.md, section 6.
#pragma once

#include <cstddef>
#include <vector>

namespace gcomm::gift {

// Skinny matrices are row-major with `stride` floats a row.
struct Skinny {
  const float* data;
  std::size_t rows;
  std::size_t stride;
};

// out[a * nb + b] = sum over i of x[i][a] y[i][b], i ascending; where x and y are the same, b >= a only.
void inner_products(const Skinny& x, std::size_t na, const Skinny& y, std::size_t nb, double* out);

// Pivoted Cholesky factorisation twice over: the columns of a that are independent, orthonormalised.
class Orthonormaliser {
 public:
  explicit Orthonormaliser(std::size_t columns);

  // q (rows x stride; may be a's memory) gets the columns found, then zeros. Returns how many: a column is
  // dropped where what is left of it, beside those chosen before, has less than 2^-22 of the largest column's
  // norm. A Gram matrix in float64 of fp32 columns still tells 2^-44 of the squared norm from its own rounding,
  // which is about sqrt(rows) 2^-53.
  std::size_t run(const Skinny& a, float* q);

  // dst[i][k] = sum over l < inner of src[i][order[l]] m[l * width + k] for k < width, l ascending, each
  // rounded to fp32 once; zeros up to the stride. order null: l itself. upper: m is upper triangular. dst may
  // be src.
  void multiply(const Skinny& src, const std::size_t* order, std::size_t inner, const double* m,
                std::size_t width, bool upper, float* dst);

 private:
  std::size_t pass(const Skinny& a, std::size_t columns, float* q);
  std::size_t factor(std::size_t columns);
  void invert(std::size_t found, std::size_t columns);

  std::size_t columns_;
  std::vector<double> gram_;
  std::vector<double> factor_;   // upper triangular, `columns` a row
  std::vector<double> inverse_;  // `found` a row
  std::vector<double> row_;
  std::vector<std::size_t> order_;
};

}  // namespace gcomm::gift
