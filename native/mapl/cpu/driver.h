// The search for nearest codewords, one an instruction set, all with the same answers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "mapl/codebook.h"

namespace gcomm::mapl {

// Sub-vectors are searched so many at a time, in registers: memory for them is a multiple of it.
inline constexpr std::size_t kSearchVectors = 6;

// codes[v] = the codeword c with the least score
//
//   c.c / 2 - z[v].c,   as a chain of fused multiply-adds: half_norm, then -z_j c_j added, j ascending
//
// and of equal ones the first. z: vectors x subvector floats, row by row; vectors is a multiple of
// kSearchVectors. The least score is the least distance: |z - c|^2 = z.z + 2 score.
struct Driver {
  void (*nearest)(const Stage& stage, const float* z, std::size_t vectors, std::uint16_t* codes);
};

const Driver& scalar_driver();
const Driver& avx2_driver();
const Driver& avx512_driver();

// The one for `isa`, or the next lesser one that this processor has.
const Driver& find_driver(codec::Isa isa);

}  // namespace gcomm::mapl
