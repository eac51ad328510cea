// The AVX-512 intrinsics that the rooms' lanes_avx512.h use, written out lane by lane after Intel's
// description, so that the AVX-512 driver runs, and is compared bit for bit, on processors that lack it. With
// GCOMM_TEST_SIMDE the SIMDe library stands in for all that its release 0.7 has, which checks this text as
// well.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/float.h"

#if defined(GCOMM_TEST_SIMDE)
#define emulated emulated_for_simde  // one program may hold both, with different types
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
struct EmulatedFloats {
  float lane[16];
};
struct EmulatedInts {
  std::int32_t lane[16];
};
#define __m512 EmulatedFloats
#define __m512i EmulatedInts
#endif

namespace emulated {

// Lanes of either type, to be read and written one by one.
template <class Element>
struct Lanes {
  Element e[64 / sizeof(Element)];
};
template <class Element, class Register>
Lanes<Element> open(const Register& r) {
  Lanes<Element> lanes;
  static_assert(sizeof r == sizeof lanes);
  std::memcpy(&lanes, &r, sizeof lanes);
  return lanes;
}
template <class Register, class Element>
Register close(const Lanes<Element>& lanes) {
  Register r;
  std::memcpy(&r, &lanes, sizeof r);
  return r;
}
template <class Register>
Register load(const void* p) {
  Register r;
  std::memcpy(&r, p, sizeof r);
  return r;
}

template <class F>
__m512 floats(F value) {
  Lanes<float> out;
  for (int i = 0; i < 16; ++i) {
    out.e[i] = value(i);
  }
  return close<__m512>(out);
}
template <class F>
__m512i ints(F value) {
  Lanes<std::int32_t> out;
  for (int i = 0; i < 16; ++i) {
    out.e[i] = static_cast<std::int32_t>(value(i));
  }
  return close<__m512i>(out);
}
template <class F>
__mmask16 mask(F value) {
  unsigned out = 0;
  for (int i = 0; i < 16; ++i) {
    out |= (value(i) ? 1u : 0u) << i;
  }
  return static_cast<__mmask16>(out);
}

// ---- what SIMDe 0.7 lacks ----

inline __m512i cvtepu8(__m128i v) {
  std::uint8_t in[16];
  std::memcpy(in, &v, sizeof in);
  return ints([&](int i) { return in[i]; });
}
inline __m512i cvtepi8(__m128i v) {
  std::int8_t in[16];
  std::memcpy(in, &v, sizeof in);
  return ints([&](int i) { return in[i]; });
}
inline __m512i cvtepu16(__m256i v) {
  std::uint16_t in[16];
  std::memcpy(in, &v, sizeof in);
  return ints([&](int i) { return in[i]; });
}
inline __m128i to_bytes(__m512i v) {
  std::uint8_t out[16];
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<std::uint8_t>(open<std::int32_t>(v).e[i]);
  }
  return load<__m128i>(out);
}
inline __m256i to_halves(__m512i v) {
  std::uint16_t out[16];
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<std::uint16_t>(open<std::int32_t>(v).e[i]);
  }
  return load<__m256i>(out);
}
inline __m512 from_f16(__m256i v) {
  std::uint16_t in[16];
  std::memcpy(in, &v, sizeof in);
  return floats([&](int i) { return gcomm::f16_to_float(in[i]); });
}
inline __m256i to_f16(__m512 v, int /*nearest even*/) {
  std::uint16_t out[16];
  for (int i = 0; i < 16; ++i) {
    out[i] = gcomm::float_to_f16(open<float>(v).e[i]);
  }
  return load<__m256i>(out);
}
// Beyond int the processor answers 0x80000000.
inline std::int32_t to_int(float v) {
  return v >= -0x1p31f && v < 0x1p31f ? static_cast<std::int32_t>(v) : INT32_MIN;
}
inline __m512i round(__m512 v) {
  return ints([&](int i) { return to_int(std::nearbyint(open<float>(v).e[i])); });
}
inline __m512i truncate(__m512 v) {
  return ints([&](int i) { return to_int(open<float>(v).e[i]); });
}
inline __m512 to_float(__m512i v) {
  return floats([&](int i) { return static_cast<float>(open<std::int32_t>(v).e[i]); });
}
// Within each 128-bit quarter.
inline __m512 permute(__m512 v, int choice) {
  return floats([&](int i) { return open<float>(v).e[i / 4 * 4 + (choice >> (2 * (i % 4)) & 3)]; });
}
// Quarters: two from a, two from b.
inline __m512 shuffle_quarters(__m512 a, __m512 b, int choice) {
  return floats([&](int i) {
    const int quarter = i / 4;
    return open<float>(quarter < 2 ? a : b).e[(choice >> (2 * quarter) & 3) * 4 + i % 4];
  });
}
inline __m512i shift_arithmetic(__m512i v, int n) {
  return ints([&](int i) { return open<std::int32_t>(v).e[i] >> n; });
}
inline __m128 quarter(__m512 v, int which) { return load<__m128>(open<float>(v).e + 4 * which); }

// ---- the rest ----

#if !defined(GCOMM_TEST_SIMDE)
using U = std::uint32_t;
inline __m512 set1(float v) {
  return floats([&](int) { return v; });
}
inline __m512i set1(std::int32_t v) {
  return ints([&](int) { return v; });
}
inline void store(void* p, const void* v) { std::memcpy(p, v, 64); }
inline __m512i cast(__m512 v) { return load<__m512i>(&v); }
inline __m512 cast(__m512i v) { return load<__m512>(&v); }
inline __m512 add(__m512 a, __m512 b) {
  return floats([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline __m512 sub(__m512 a, __m512 b) {
  return floats([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline __m512 mul(__m512 a, __m512 b) {
  return floats([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline __m512 div(__m512 a, __m512 b) {
  return floats([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline __m512 minus_product(__m512 a, __m512 b, __m512 c) {
  return floats([&](int i) { return std::fma(-a.lane[i], b.lane[i], c.lane[i]); });
}
inline __m512i add(__m512i a, __m512i b) {
  return ints([&](int i) { return U(a.lane[i]) + U(b.lane[i]); });
}
inline __m512i sub(__m512i a, __m512i b) {
  return ints([&](int i) { return U(a.lane[i]) - U(b.lane[i]); });
}
inline __m512i bit_and(__m512i a, __m512i b) {
  return ints([&](int i) { return a.lane[i] & b.lane[i]; });
}
inline __m512i bit_or(__m512i a, __m512i b) {
  return ints([&](int i) { return a.lane[i] | b.lane[i]; });
}
inline __m512i bit_xor(__m512i a, __m512i b) {
  return ints([&](int i) { return a.lane[i] ^ b.lane[i]; });
}
inline __m512i min(__m512i a, __m512i b) {
  return ints([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline __m512i max(__m512i a, __m512i b) {
  return ints([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline __m512i shift_left(__m512i v, int n) {
  return ints([&](int i) { return U(v.lane[i]) << n; });
}
inline __m512i shift_right(__m512i v, int n) {
  return ints([&](int i) { return U(v.lane[i]) >> n; });
}
inline __m512 round_down(__m512 v, int /*towards minus infinity*/) {
  return floats([&](int i) { return std::floor(v.lane[i]); });
}
inline __mmask16 greater(__m512i a, __m512i b) {
  return mask([&](int i) { return a.lane[i] > b.lane[i]; });
}
inline __mmask16 compare(__m512 a, __m512 b, int how) {
  return mask([&](int i) {
    const float x = a.lane[i];
    const float y = b.lane[i];
    return how == _CMP_GT_OQ ? x > y : std::isunordered(x, y);
  });
}
inline __m512i blend(__mmask16 m, __m512i no, __m512i yes) {
  return ints([&](int i) { return m >> i & 1 ? yes.lane[i] : no.lane[i]; });
}
inline __m512 blend(__mmask16 m, __m512 no, __m512 yes) {
  return floats([&](int i) { return m >> i & 1 ? yes.lane[i] : no.lane[i]; });
}
inline __m512i zero_unless(__mmask16 m, __m512i v) {
  return ints([&](int i) { return m >> i & 1 ? v.lane[i] : 0; });
}
inline __m512i shuffle_quarters(__m512i a, __m512i b, int choice) {
  return ints([&](int i) {
    const int quarter = i / 4;
    return (quarter < 2 ? a : b).lane[(choice >> (2 * quarter) & 3) * 4 + i % 4];
  });
}
// Of each quarter: a0 b0 a1 b1, or a2 b2 a3 b3.
inline __m512i unpack32(__m512i a, __m512i b, int first) {
  return ints([&](int i) { return (i % 2 ? b : a).lane[i / 4 * 4 + first + i % 4 / 2]; });
}
// The same with pairs of lanes: a0 a1 b0 b1, or a2 a3 b2 b3.
inline __m512i unpack64(__m512i a, __m512i b, int first) {
  return ints([&](int i) { return (i % 4 / 2 ? b : a).lane[i / 4 * 4 + first + i % 2]; });
}
#endif

}  // namespace emulated

// GCC has some of these as macros when it does not optimise.
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_epi16
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtps_epi32
#undef _mm512_cvttps_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_permute_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_srai_epi32
#undef _mm512_extractf32x4_ps
#undef _mm512_castps512_ps128
#define _mm512_cvtepu8_epi32 emulated::cvtepu8
#define _mm512_cvtepi8_epi32 emulated::cvtepi8
#define _mm512_cvtepu16_epi32 emulated::cvtepu16
#define _mm512_cvtepi32_epi8 emulated::to_bytes
#define _mm512_cvtepi32_epi16 emulated::to_halves
#define _mm512_cvtph_ps emulated::from_f16
#define _mm512_cvtps_ph emulated::to_f16
#define _mm512_cvtps_epi32 emulated::round
#define _mm512_cvttps_epi32 emulated::truncate
#define _mm512_cvtepi32_ps emulated::to_float
#define _mm512_permute_ps emulated::permute
#define _mm512_shuffle_f32x4 emulated::shuffle_quarters
#define _mm512_srai_epi32 emulated::shift_arithmetic
#define _mm512_extractf32x4_ps emulated::quarter
#define _mm512_castps512_ps128(v) emulated::quarter(v, 0)

#if !defined(GCOMM_TEST_SIMDE)
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_roundscale_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_shuffle_i32x4
#define _mm512_set1_ps emulated::set1
#define _mm512_set1_epi32 emulated::set1
#define _mm512_loadu_ps emulated::load<__m512>
#define _mm512_loadu_si512 emulated::load<__m512i>
#define _mm512_storeu_ps(p, v) emulated::store(p, &(v))
#define _mm512_storeu_si512(p, v) emulated::store(p, &(v))
#define _mm512_castps_si512 emulated::cast
#define _mm512_castsi512_ps emulated::cast
#define _mm512_add_ps emulated::add
#define _mm512_sub_ps emulated::sub
#define _mm512_mul_ps emulated::mul
#define _mm512_div_ps emulated::div
#define _mm512_fnmadd_ps emulated::minus_product
#define _mm512_add_epi32 emulated::add
#define _mm512_sub_epi32 emulated::sub
#define _mm512_and_si512 emulated::bit_and
#define _mm512_or_si512 emulated::bit_or
#define _mm512_xor_si512 emulated::bit_xor
#define _mm512_min_epi32 emulated::min
#define _mm512_max_epi32 emulated::max
#define _mm512_slli_epi32 emulated::shift_left
#define _mm512_srli_epi32 emulated::shift_right
#define _mm512_roundscale_ps emulated::round_down
#define _mm512_cmpgt_epi32_mask emulated::greater
#define _mm512_cmp_ps_mask emulated::compare
#define _mm512_mask_blend_epi32 emulated::blend
#define _mm512_mask_blend_ps emulated::blend
#define _mm512_maskz_mov_epi32 emulated::zero_unless
#define _mm512_shuffle_i32x4 emulated::shuffle_quarters
#define _mm512_unpacklo_epi32(a, b) emulated::unpack32(a, b, 0)
#define _mm512_unpackhi_epi32(a, b) emulated::unpack32(a, b, 2)
#define _mm512_unpacklo_epi64(a, b) emulated::unpack64(a, b, 0)
#define _mm512_unpackhi_epi64(a, b) emulated::unpack64(a, b, 2)
#endif
