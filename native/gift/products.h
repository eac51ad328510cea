// The skinny products of GIFT: a large matrix G against r columns, and the update of G by a product of rank 2r.
//
// Every number is a chain of fused multiply-adds in a documented order (docs/wire-format.md, section 6), so
// that all instruction sets, and all cuts into slices of rows, give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "codec/codec.h"

namespace gcomm::gift {

// Columns of a skinny factor in memory: the rank rounded up, the rest zero.
inline constexpr std::size_t padded_rank(std::size_t rank) { return (rank + 7) / 8 * 8; }

// G, row-major, dense; fp32, bf16 or fp16 at any address.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::size_t rows = 0;
  std::size_t cols = 0;
  // Error feedback, or null: G is data + addend as docs/wire-format.md, 1.1, adds a residual (one fp32
  // addition, to finite data only; beyond FLT_MAX it saturates; an addend that is not finite is not added).
  const float* addend = nullptr;
  bool zero_nonfinite = false;  // a NaN or Inf in data counts as zero, before the addition
};

// For the rows [begin, end) of g:
//   left  (padded_rank x cols)   left[k][j] = fma(g[i][j], u[i][k], left[k][j]) for i ascending: accumulates,
//   so
//                                 that slices taken in order add up to U^T G; the caller clears it first
//   right (rows x padded_rank)   right[i][k] = the chain fma(g[i][j], v[j][k], acc) from 0, j ascending: G V
// u: rows x padded_rank, v: cols x padded_rank. Either pair may be null. G is read once. Which NaN comes out of
// a NaN or an Inf is not said. Throws kInvalid for a dtype that codecs don't read, rows outside g, no columns.
void products(const MatrixView& g, std::size_t begin, std::size_t end, std::size_t rank, const float* u,
              float* left, const float* v, float* right, codec::Isa isa);

// x[e - element] = the chain fma(l[i][k], r[k][j], acc) from x, k ascending over `terms`, for the elements
// e = i cols + j of [element, element + count) of a matrix. l: rows x terms, r: terms x cols; terms is a
// multiple of 8.
void rank_update(float* x, std::uint64_t element, std::size_t count, std::size_t cols, std::size_t terms,
                 const float* l, const float* r, codec::Isa isa);

}  // namespace gcomm::gift
