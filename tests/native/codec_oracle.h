// What docs/wire-format.md says about single codes, written out in double and one bit at a time; shares nothing
// with the library.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace oracle {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

struct FloatFormat {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_inf;      // all exponent bits set: Inf or NaN
  bool has_one_nan;  // only all bits set are a NaN (e4m3)

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  double value(unsigned code) const {
    const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
    const unsigned top = (1u << exponent_bits) - 1;
    const unsigned exponent = code >> mantissa_bits & top;
    const double sign = code >> (bits() - 1) & 1 ? -1.0 : 1.0;
    if (has_inf && exponent == top) {
      return mantissa == 0 ? sign * kInf : kNaN;
    }
    if (has_one_nan && exponent == top && mantissa == (1u << mantissa_bits) - 1) {
      return kNaN;
    }
    if (exponent == 0) {
      return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign *
           std::ldexp(mantissa + (1u << mantissa_bits), static_cast<int>(exponent) - bias - mantissa_bits);
  }
  // Nearest by looking at every non-negative finite code; a tie goes to the even one; beyond the largest it
  // saturates.
  unsigned nearest(double y) const {
    unsigned best = 0;
    for (unsigned code = 0; code < 1u << (bits() - 1); ++code) {
      const double v = value(code);
      if (!std::isfinite(v)) {
        continue;
      }
      const double d = std::fabs(std::fabs(y) - v);
      const double so_far = std::fabs(std::fabs(y) - value(best));
      if (d < so_far || (d == so_far && code % 2 == 0)) {
        best = code;
      }
    }
    return best | (std::signbit(y) ? 1u << (bits() - 1) : 0u);
  }
};

inline constexpr FloatFormat kE4M3{"e4m3", 4, 3, 7, false, true};
inline constexpr FloatFormat kE5M2{"e5m2", 5, 2, 15, true, false};
inline constexpr FloatFormat kE2M1{"e2m1", 2, 1, 1, false, false};
inline constexpr FloatFormat kBF16{"bf16", 8, 7, 127, true, false};
inline constexpr FloatFormat kF16{"fp16", 5, 10, 15, true, false};

// Bit `bit` of the code of element j, in a block of packed codes: where the page puts it.
struct Place {
  int byte;
  int bit;
};
inline Place int4_place(int j, int bit) { return {j % 32, bit + (j < 32 ? 0 : 4)}; }
inline Place int6_place(int j, int bit) {
  return bit < 4 ? Place{j % 32, bit + (j < 32 ? 0 : 4)} : Place{32 + j % 16, bit - 4 + 2 * (j / 16)};
}
inline Place int3_place(int j, int bit) {
  return bit < 2 ? Place{j % 8, bit + 2 * (j / 8)} : Place{8 + j / 8, j % 8};
}
inline Place int2_place(int j, int bit) { return {j % 8, bit + 2 * (j / 8)}; }
inline Place e2m1_place(int j, int bit) { return {j / 2, bit + 4 * (j % 2)}; }

struct PackedFormat {
  const char* name;
  int block;
  int bytes;
  int code_bits;
  Place (*place)(int j, int bit);
  double (*value)(unsigned code);
};
inline const PackedFormat kPacked[] = {
    {"int6", 64, 48, 6, &int6_place, [](unsigned u) { return static_cast<double>(u) - 32; }},
    {"int4", 64, 32, 4, &int4_place, [](unsigned u) { return static_cast<double>(u) - 8; }},
    {"int3", 32, 12, 3, &int3_place, [](unsigned u) { return static_cast<double>(u) - 4; }},
    {"int2", 32, 8, 2, &int2_place, [](unsigned u) { return 2 * static_cast<double>(u) - 3; }},
    {"mxfp4", 32, 16, 4, &e2m1_place, [](unsigned u) { return u == 8 ? 0.0 : kE2M1.value(u); }},
    {"nvfp4", 16, 8, 4, &e2m1_place, [](unsigned u) { return u == 8 ? 0.0 : kE2M1.value(u); }},
};

inline std::vector<std::uint8_t> pack(const PackedFormat& format, const std::vector<unsigned>& codes) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(format.bytes));
  for (int j = 0; j < format.block; ++j) {
    for (int bit = 0; bit < format.code_bits; ++bit) {
      const Place place = format.place(j, bit);
      out[static_cast<std::size_t>(place.byte)] =
          static_cast<std::uint8_t>(out[static_cast<std::size_t>(place.byte)] |
                                    (codes[static_cast<std::size_t>(j)] >> bit & 1) << place.bit);
    }
  }
  return out;
}

}  // namespace oracle
