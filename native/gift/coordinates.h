// The leading directions of a matrix in use, its products with them, and the transform of scale mode.
#pragma once

#include <vector>

#include "gift/basis.h"

namespace gcomm::gift {

// x += l r, tile by tile, l being rows x terms and r terms x cols.
struct RankUpdate {
  std::size_t terms = 0;
  std::vector<float> l;
  std::vector<float> r;

  void apply(std::uint64_t element, std::size_t count, std::size_t cols, float* x, codec::Isa isa) const {
    rank_update(x, element, count, cols, terms, l.data(), r.data(), isa);
  }
};

class Coordinates {
 public:
  // The first `rank` directions of the basis; alpha_eighths: of scale mode's damping.
  void set(const Basis& basis, std::size_t rank, int alpha_eighths);

  std::size_t rows() const noexcept { return rows_; }
  std::size_t cols() const noexcept { return cols_; }
  std::size_t rank() const noexcept { return rank_; }
  // Columns of u and v: the rank and zeros up to a multiple of 8.
  std::size_t width() const noexcept { return width_; }
  const float* u() const noexcept { return u_.data(); }
  const float* v() const noexcept { return v_.data(); }
  // An update of 2 width() terms whose halves that depend on no matrix are there: U left, V^T below.
  RankUpdate make_update() const;

  // U^T G, added to left, and G V, of some rows; or of all in left() and right().
  void add_rows(const MatrixView& g, std::size_t begin, std::size_t end, float* left, codec::Isa isa);
  void project(const MatrixView& g, codec::Isa isa);
  bool finite() const;
  bool within(float most) const;                           // and so finite
  std::vector<float>& left() noexcept { return left_; }    // width x cols
  std::vector<float>& right() noexcept { return right_; }  // rows x width
  // left() V, rank x rank, in float64; rows of left() from `left`.
  const std::vector<double>& core(const float* left);

  // Of G, from its products: what makes T(G) of it, and what makes G of T(G).
  void damping_update(RankUpdate& update) { scale_update(damp_, update); }
  void raising_update(RankUpdate& update) { scale_update(raise_, update); }
  // The same for a whole matrix in place.
  void damp(float* matrix, RankUpdate& scratch, codec::Isa isa);
  void raise(float* matrix, RankUpdate& scratch, codec::Isa isa);

 private:
  void scale_update(const std::vector<double>& a, RankUpdate& update);
  void project_own(const float* matrix, codec::Isa isa);

  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  std::size_t rank_ = 0;
  std::size_t width_ = 0;
  std::vector<float> u_;
  std::vector<float> v_;
  std::vector<double> damp_;   // d - 1
  std::vector<double> raise_;  // 1/d - 1
  std::vector<float> left_;
  std::vector<float> right_;
  std::vector<double> core_;
};

}  // namespace gcomm::gift
