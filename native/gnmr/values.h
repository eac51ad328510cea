// A unit's values around a decision: their norm, the same bits everywhere, and what clip and skip do to them.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace gcomm::gnmr {

// The root of the sum of squares of F32, BF16 or F16, in float64 in one order on every machine: eight partial
// sums in 4096 elements, then tile after tile.
double norm(const void* data, DType dtype, std::size_t count);

// Multiplies by scale, each product rounded to the dtype once more after float; all become zero where scale is
// 0.
void scale(void* data, DType dtype, std::size_t count, double scale);

}  // namespace gcomm::gnmr
