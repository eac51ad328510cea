// Scalar conversions between binary32 and the 16-bit formats, by integer arithmetic alone.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace gcomm {

inline constexpr std::uint32_t kCanonicalNaN = 0x7FC00000u;
inline constexpr std::uint16_t kCanonicalNaNBf16 = 0x7FC0u;
inline constexpr std::uint16_t kCanonicalNaNF16 = 0x7E00u;

GCOMM_HD std::uint32_t float_bits(float value) { return __builtin_bit_cast(std::uint32_t, value); }
GCOMM_HD float bits_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
GCOMM_HD bool is_finite(float value) { return (float_bits(value) & 0x7FFFFFFFu) < 0x7F800000u; }

// A NaN keeps its payload.
GCOMM_HD float bf16_to_float(std::uint16_t half) { return bits_float(std::uint32_t{half} << 16); }

// Nearest even; beyond the largest finite value Inf, a NaN canonical.
GCOMM_HD std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return kCanonicalNaNBf16;
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// A NaN becomes quiet and keeps its payload.
GCOMM_HD float f16_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {
    return bits_float(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13 | (magnitude > 0x7C00u ? 0x400000u : 0u));
  }
  // As a binary32 with a tiny exponent, then scaled up exactly by 2^112: denormals come out right, too.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p112f));
}

// Nearest even; beyond the largest finite value Inf, a NaN canonical.
GCOMM_HD std::uint16_t float_to_f16(float value) {
  const std::uint32_t sign = (float_bits(value) >> 16) & 0x8000u;
  const std::uint32_t a = float_bits(value) & 0x7FFFFFFFu;
  if (a > 0x7F800000u) {
    return kCanonicalNaNF16;
  }
  if (a >= 0x477FF000u) {  // 65520, halfway between the largest finite value and 2^16
    return static_cast<std::uint16_t>(sign | 0x7C00u);
  }
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the last bits
    return static_cast<std::uint16_t>(sign | (float_bits(bits_float(a) + 0.5f) - 0x3F000000u));
  }
  return static_cast<std::uint16_t>(sign | ((a - 0x38000000u + 0xFFFu + ((a >> 13) & 1u)) >> 13));
}

}  // namespace gcomm
