// The basis of one matrix: its leading singular directions, followed from call to call by warm-started subspace
// iteration on what all ranks hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/aligned.h"
#include "gift/products.h"

namespace gcomm::gift {

class Basis {
 public:
  // rank: at least 1 and less than min(rows, cols). Throws kInvalid.
  Basis(std::size_t rows, std::size_t cols, std::size_t rank);
  Basis(Basis&&) noexcept;
  Basis& operator=(Basis&&) noexcept;
  ~Basis();

  std::size_t rows() const noexcept { return rows_; }
  std::size_t cols() const noexcept { return cols_; }
  std::size_t max_rank() const noexcept { return max_rank_; }
  // Directions found: 0 before the first update, less than max_rank() for a matrix of lower rank.
  std::size_t rank() const noexcept { return values_.size(); }

  // `rounds` of V <- orth(G^T U), U <- orth(G V), from the present basis, or from a fixed pseudo-random start
  // where there is none (or its rank had fallen; then at least two rounds); then the rotation by the core's
  // SVD. Directions whose singular value is lost in the products' rounding, below 2^-24 max(16, sqrt(max(rows,
  // cols))) of the largest, are dropped. The sign of a pair is that of u's largest entry: positive. False, and
  // nothing changes, where g holds a NaN or an Inf or is all zero. Throws kInvalid for another shape, a dtype
  // that codecs don't read, or rounds < 1. Allocates in the first call only.
  bool update(const MatrixView& g, int rounds, codec::Isa isa);

  // Orthonormal columns, rank() of them, then zeros up to padded_rank(max_rank()).
  const float* u() const noexcept { return floats(u_); }  // rows x padded_rank(max_rank())
  const float* v() const noexcept { return floats(v_); }  // cols x padded_rank(max_rank())
  // Of the last reference: rank() leading singular values, descending; ||G||_F^2.
  const std::vector<double>& singular_values() const noexcept { return values_; }
  double squared_norm() const noexcept { return squared_norm_; }

  // FNV-1a (base/hash.h) over shape, rank and the bits of U, V, the spectrum and the norm; changes with every
  // update that changed anything. Kept, not computed, here.
  std::uint64_t digest() const noexcept { return digest_; }

  // All of the above in a fixed number of bytes for a shape and max_rank, little-endian; load() throws kCodec
  // and changes nothing for bytes that are not such a basis (lengths, non-finite numbers, digest).
  std::size_t saved_bytes() const noexcept;
  void save(std::uint8_t* dst) const;
  void load(const std::uint8_t* src, std::size_t bytes);

 private:
  struct Work;

  static float* floats(AlignedBuffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  static const float* floats(const AlignedBuffer& buffer) {
    return reinterpret_cast<const float*>(buffer.data());
  }
  std::size_t padded() const noexcept { return padded_rank(max_rank_); }

  void start(float* u, Work& work) const;
  void iterate(const MatrixView& g, int rounds, float scale, codec::Isa isa, Work& work) const;
  std::size_t turn(double scale, Work& work) const;
  void fix_signs(float* u, float* v, std::size_t found) const;
  template <class Sink>
  void write(Sink& sink) const;
  std::uint64_t compute_digest() const;

  std::size_t rows_;
  std::size_t cols_;
  std::size_t max_rank_;
  AlignedBuffer u_;
  AlignedBuffer v_;
  std::vector<double> values_;
  double squared_norm_ = 0.0;
  std::uint64_t digest_ = 0;
  std::unique_ptr<Work> work_;
};

}  // namespace gcomm::gift
