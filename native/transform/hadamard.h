// Randomised block Hadamard transform: docs/wire-format.md, section 2. Orthonormal up to rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hd.h"

namespace gcomm::transform {

// The sign bits of positions 0..count-1 of every tile, 32 to a word.
std::vector<std::uint32_t> hadamard_signs(std::uint64_t seed, std::size_t count);

// What the result of the stages is multiplied by.
GCOMM_HD float hadamard_factor(int size) {
  return size == 64 ? 0.125f : size == 128 ? 0x1.6a09e6p-4f : 0.0625f;
}

}  // namespace gcomm::transform
