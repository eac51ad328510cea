// The loops over whole matrices, one set an instruction set; products.h and docs/wire-format.md, section 6, say
// which bits come out of each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gift/products.h"

namespace gcomm::gift {

// Partial sums of squares, by column modulo this.
inline constexpr std::size_t kSquareLanes = 16;

struct Driver {
  // As products(), with the rank padded; neither pair need be given.
  void (*products)(const MatrixView& g, std::size_t begin, std::size_t end, std::size_t padded, const float* u,
                   float* left, const float* v, float* right);
  // As rank_update(), of at least one element.
  void (*rank_update)(float* x, std::uint64_t element, std::size_t count, std::size_t cols, std::size_t terms,
                      const float* l, const float* r);
  // lane[j mod kSquareLanes] += double(g[i][j])^2, i ascending, then j.
  void (*add_squares)(const MatrixView& g, double* lane);
};

const Driver& scalar_driver();
const Driver& avx2_driver();

// The one for `isa`, or the scalar one where this processor lacks it.
const Driver& find_driver(codec::Isa isa);

}  // namespace gcomm::gift
