// Sixteen lanes: AVX-512 F, BW, VL, DQ. codec/formats/lanes_scalar.h tells what each member means. The
// intrinsics are included by who includes this: a test compiles it over an emulation, so that it runs on every
// processor.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/cpu/bytes_avx2.h"

namespace gcomm::codec {

struct Avx512Lanes : Avx2Bytes {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;
  static constexpr int kLanes = 16;
  static constexpr int kGroup = 32;

  static GCOMM_HD F set(float value) { return _mm512_set1_ps(value); }
  static GCOMM_HD I set(std::int32_t value) { return _mm512_set1_epi32(value); }

  static GCOMM_HD F load(const float* p) { return _mm512_loadu_ps(p); }
  static GCOMM_HD void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static GCOMM_HD void stream(float* p, F v) {
    _mm_stream_ps(p, _mm512_castps512_ps128(v));
    _mm_stream_ps(p + 4, _mm512_extractf32x4_ps(v, 1));
    _mm_stream_ps(p + 8, _mm512_extractf32x4_ps(v, 2));
    _mm_stream_ps(p + 12, _mm512_extractf32x4_ps(v, 3));
  }
  static GCOMM_HD void end_stream() { _mm_sfence(); }
  static GCOMM_HD I load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  static GCOMM_HD void store(std::int32_t* p, I v) { _mm512_storeu_si512(p, v); }
  static GCOMM_HD I load_u8(const std::uint8_t* p) { return _mm512_cvtepu8_epi32(load128(p)); }
  static GCOMM_HD I load_i8(const std::uint8_t* p) { return _mm512_cvtepi8_epi32(load128(p)); }
  static GCOMM_HD I load_u16(const void* p) { return _mm512_cvtepu16_epi32(load256(p)); }
  static GCOMM_HD F load_f16(const void* p) { return _mm512_cvtph_ps(load256(p)); }
  static GCOMM_HD void store_bytes(std::uint8_t* p, const I* v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v[0]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16), _mm512_cvtepi32_epi8(v[1]));
  }
  static GCOMM_HD void store_u16(void* p, I v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
  }
  static GCOMM_HD void store_f16(void* p, F v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static GCOMM_HD void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  static GCOMM_HD F add(F a, F b) { return _mm512_add_ps(a, b); }
  static GCOMM_HD F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static GCOMM_HD F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static GCOMM_HD F div(F a, F b) { return _mm512_div_ps(a, b); }

  static GCOMM_HD I bits(F v) { return _mm512_castps_si512(v); }
  static GCOMM_HD F real(I v) { return _mm512_castsi512_ps(v); }
  static GCOMM_HD F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static GCOMM_HD I by_sign(F v, I minus, I plus) {
    return select(_mm512_cmpgt_epi32_mask(set(0), bits(v)), minus, plus);
  }
  static GCOMM_HD I round(F v) { return _mm512_cvtps_epi32(v); }
  static GCOMM_HD I truncate(F v) { return _mm512_cvttps_epi32(v); }
  static GCOMM_HD I floor(F v) {
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    return _mm512_cvttps_epi32(_mm512_roundscale_ps(v, kDown));
  }

  static GCOMM_HD I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static GCOMM_HD I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static GCOMM_HD I and_(I a, I b) { return _mm512_and_si512(a, b); }
  static GCOMM_HD I or_(I a, I b) { return _mm512_or_si512(a, b); }
  static GCOMM_HD I xor_(I a, I b) { return _mm512_xor_si512(a, b); }
  static GCOMM_HD I min(I a, I b) { return _mm512_min_epi32(a, b); }
  static GCOMM_HD I max(I a, I b) { return _mm512_max_epi32(a, b); }
  template <int n>
  static GCOMM_HD I shl(I v) {
    return _mm512_slli_epi32(v, n);
  }
  template <int n>
  static GCOMM_HD I shr(I v) {
    return _mm512_srli_epi32(v, n);
  }
  template <int n>
  static GCOMM_HD I sar(I v) {
    return _mm512_srai_epi32(v, n);
  }

  static GCOMM_HD M greater(I a, I b) { return _mm512_cmpgt_epi32_mask(a, b); }
  static GCOMM_HD M greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static GCOMM_HD M is_nan(F v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
  static GCOMM_HD bool any(M m) { return m != 0; }
  static GCOMM_HD F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static GCOMM_HD I select(M m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }

  // Each stage: the partner plus the lane itself, which is negated where its bit of the stride is set.
  static GCOMM_HD F butterflies(F v) {
    v = add(_mm512_permute_ps(v, 0xB1), flip(v, 0xAAAA));
    v = add(_mm512_permute_ps(v, 0x4E), flip(v, 0xCCCC));
    v = add(_mm512_shuffle_f32x4(v, v, 0xB1), flip(v, 0xF0F0));
    return add(_mm512_shuffle_f32x4(v, v, 0x4E), flip(v, 0xFF00));
  }
  static GCOMM_HD I sign_bits(std::uint32_t word, int first) {
    return _mm512_maskz_mov_epi32(static_cast<M>(word >> first), set(kSign));
  }

  static GCOMM_HD I maxima(const I* v) {
    // 128-bit quarter q of maxima4(v + 4 g) holds what quarter q of v[4 g .. 4 g + 3] contributes.
    const I low = fold_quarters(maxima4(v), maxima4(v + 4));
    const I high = fold_quarters(maxima4(v + 8), maxima4(v + 12));
    return max(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
  }

 private:
  static constexpr std::int32_t kSign = static_cast<std::int32_t>(0x80000000u);

  static GCOMM_HD F flip(F v, M lanes) {
    return real(xor_(bits(v), _mm512_maskz_mov_epi32(lanes, set(kSign))));
  }
  static GCOMM_HD __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static GCOMM_HD __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

  static GCOMM_HD I maxima4(const I* v) {
    const I first = max(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const I second = max(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return max(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  }
  // Quarters a0|a2, a1|a3, b0|b2, b1|b3.
  static GCOMM_HD I fold_quarters(I a, I b) {
    return max(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
  }
};

}  // namespace gcomm::codec
