#include "gift/coordinates.h"

#include <algorithm>

#include "gift/choice.h"
#include "gift/rows.h"

namespace gcomm::gift {
namespace {

void copy_columns(const float* from, std::size_t from_width, std::size_t rows, std::size_t count,
                  std::size_t width, std::vector<float>& to) {
  to.assign(rows * width, 0.0f);
  for (std::size_t i = 0; i < rows; ++i) {
    std::copy(from + i * from_width, from + i * from_width + count, to.data() + i * width);
  }
}

}  // namespace

void Coordinates::set(const Basis& basis, std::size_t rank, int alpha_eighths) {
  rows_ = basis.rows();
  cols_ = basis.cols();
  rank_ = rank;
  width_ = padded_rank(rank);
  const std::size_t from = padded_rank(basis.max_rank());
  copy_columns(basis.u(), from, rows_, rank, width_, u_);
  copy_columns(basis.v(), from, cols_, rank, width_, v_);
  left_.resize(width_ * cols_);
  right_.resize(width_ * rows_);
  core_.resize(rank * rank);
  const Spectrum spectrum{rows_, cols_, basis.singular_values(), basis.squared_norm()};
  damp_.resize(rank);
  raise_.resize(rank);
  for (std::size_t k = 0; k < rank; ++k) {
    const double d = damping(spectrum, rank, k, alpha_eighths);
    damp_[k] = d - 1.0;
    raise_[k] = 1.0 / d - 1.0;
  }
}

RankUpdate Coordinates::make_update() const {
  RankUpdate update;
  update.terms = 2 * width_;
  update.l.assign(rows_ * update.terms, 0.0f);
  update.r.assign(update.terms * cols_, 0.0f);
  for (std::size_t i = 0; i < rows_; ++i) {
    for (std::size_t k = 0; k < width_; ++k) update.l[i * update.terms + k] = u_[i * width_ + k];
  }
  for (std::size_t k = 0; k < width_; ++k) {
    for (std::size_t j = 0; j < cols_; ++j) update.r[(width_ + k) * cols_ + j] = v_[j * width_ + k];
  }
  return update;
}

void Coordinates::add_rows(const MatrixView& g, std::size_t begin, std::size_t end, float* left,
                           codec::Isa isa) {
  products(g, begin, end, rank_, u_.data(), left, v_.data(), right_.data(), isa);
}

void Coordinates::project(const MatrixView& g, codec::Isa isa) {
  std::fill(left_.begin(), left_.end(), 0.0f);
  add_rows(g, 0, rows_, left_.data(), isa);
}

bool Coordinates::finite() const {
  return all_finite(left_.data(), left_.size()) && all_finite(right_.data(), right_.size());
}

bool Coordinates::within(float most) const {
  return all_within(left_.data(), left_.size(), most) && all_within(right_.data(), right_.size(), most);
}

const std::vector<double>& Coordinates::core(const float* left) {
  std::fill(core_.begin(), core_.end(), 0.0);
  for (std::size_t k = 0; k < rank_; ++k) {
    for (std::size_t j = 0; j < cols_; ++j) {
      const double p = left[k * cols_ + j];
      for (std::size_t c = 0; c < rank_; ++c) core_[k * rank_ + c] += p * double{v_[j * width_ + c]};
    }
  }
  return core_;
}

void Coordinates::scale_update(const std::vector<double>& a, RankUpdate& update) {
  // (I + U A U^T) G (I + V A V^T) = G + U (A P) + (W A + U A P V A) V^T, with P = U^T G and W = G V.
  core(left_.data());
  for (std::size_t k = 0; k < rank_; ++k) {
    for (std::size_t c = 0; c < rank_; ++c) core_[k * rank_ + c] *= a[k] * a[c];
    for (std::size_t j = 0; j < cols_; ++j) {
      update.r[k * cols_ + j] = static_cast<float>(a[k] * double{left_[k * cols_ + j]});
    }
  }
  for (std::size_t i = 0; i < rows_; ++i) {
    for (std::size_t c = 0; c < rank_; ++c) {
      double sum = a[c] * double{right_[i * width_ + c]};
      for (std::size_t k = 0; k < rank_; ++k) sum += double{u_[i * width_ + k]} * core_[k * rank_ + c];
      update.l[i * update.terms + width_ + c] = static_cast<float>(sum);
    }
  }
}

void Coordinates::project_own(const float* matrix, codec::Isa isa) {
  MatrixView g;
  g.data = matrix;
  g.rows = rows_;
  g.cols = cols_;
  project(g, isa);
}

void Coordinates::damp(float* matrix, RankUpdate& scratch, codec::Isa isa) {
  project_own(matrix, isa);
  damping_update(scratch);
  scratch.apply(0, rows_ * cols_, cols_, matrix, isa);
}

void Coordinates::raise(float* matrix, RankUpdate& scratch, codec::Isa isa) {
  project_own(matrix, isa);
  raising_update(scratch);
  scratch.apply(0, rows_ * cols_, cols_, matrix, isa);
}

}  // namespace gcomm::gift
