// Eight lanes: AVX2 and F16C. codec/formats/lanes_scalar.h tells what each member means.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/hd.h"
#include "codec/cpu/bytes_avx2.h"

namespace gcomm::codec {

struct Avx2Lanes : Avx2Bytes {
  using F = __m256;
  using I = __m256i;
  using M = __m256i;  // all ones or all zeros in a lane
  static constexpr int kLanes = 8;
  static constexpr int kGroup = 32;

  static GCOMM_HD F set(float value) { return _mm256_set1_ps(value); }
  static GCOMM_HD I set(std::int32_t value) { return _mm256_set1_epi32(value); }

  static GCOMM_HD F load(const float* p) { return _mm256_loadu_ps(p); }
  static GCOMM_HD void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static GCOMM_HD void stream(float* p, F v) {
    _mm_stream_ps(p, _mm256_castps256_ps128(v));
    _mm_stream_ps(p + 4, _mm256_extractf128_ps(v, 1));
  }
  static GCOMM_HD void end_stream() { _mm_sfence(); }
  static GCOMM_HD I load(const std::int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
  static GCOMM_HD void store(std::int32_t* p, I v) { _mm256_storeu_si256(reinterpret_cast<I*>(p), v); }
  static GCOMM_HD I load_u8(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static GCOMM_HD I load_i8(const std::uint8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static GCOMM_HD I load_u16(const void* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static GCOMM_HD F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static GCOMM_HD void store_bytes(std::uint8_t* p, const I* v) {
    const I halves01 = _mm256_packs_epi32(v[0], v[1]);
    const I halves23 = _mm256_packs_epi32(v[2], v[3]);
    const I bytes = _mm256_packs_epi16(halves01, halves23);
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<I*>(p), _mm256_permutevar8x32_epi32(bytes, order));
  }
  static GCOMM_HD void store_u16(void* p, I v) {
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storeu_si128(static_cast<__m128i*>(p), halves);
  }
  static GCOMM_HD void store_f16(void* p, F v) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  static GCOMM_HD void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

  static GCOMM_HD F add(F a, F b) { return _mm256_add_ps(a, b); }
  static GCOMM_HD F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static GCOMM_HD F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static GCOMM_HD F div(F a, F b) { return _mm256_div_ps(a, b); }

  static GCOMM_HD I bits(F v) { return _mm256_castps_si256(v); }
  static GCOMM_HD F real(I v) { return _mm256_castsi256_ps(v); }
  static GCOMM_HD F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static GCOMM_HD I by_sign(F v, I minus, I plus) { return select(bits(v), minus, plus); }
  static GCOMM_HD I round(F v) { return _mm256_cvtps_epi32(v); }
  static GCOMM_HD I truncate(F v) { return _mm256_cvttps_epi32(v); }
  static GCOMM_HD I floor(F v) { return _mm256_cvttps_epi32(_mm256_floor_ps(v)); }

  static GCOMM_HD I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static GCOMM_HD I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static GCOMM_HD I and_(I a, I b) { return _mm256_and_si256(a, b); }
  static GCOMM_HD I or_(I a, I b) { return _mm256_or_si256(a, b); }
  static GCOMM_HD I xor_(I a, I b) { return _mm256_xor_si256(a, b); }
  static GCOMM_HD I min(I a, I b) { return _mm256_min_epi32(a, b); }
  static GCOMM_HD I max(I a, I b) { return _mm256_max_epi32(a, b); }
  template <int n>
  static GCOMM_HD I shl(I v) {
    return _mm256_slli_epi32(v, n);
  }
  template <int n>
  static GCOMM_HD I shr(I v) {
    return _mm256_srli_epi32(v, n);
  }
  template <int n>
  static GCOMM_HD I sar(I v) {
    return _mm256_srai_epi32(v, n);
  }

  static GCOMM_HD M greater(I a, I b) { return _mm256_cmpgt_epi32(a, b); }
  static GCOMM_HD M greater(F a, F b) { return bits(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
  static GCOMM_HD M is_nan(F v) { return bits(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)); }
  static GCOMM_HD bool any(M m) { return _mm256_movemask_ps(real(m)) != 0; }
  static GCOMM_HD F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, real(m)); }
  static GCOMM_HD I select(M m, I yes, I no) { return bits(select(m, real(yes), real(no))); }

  // a + b where the lane's bit is clear, b's partner minus itself where it is set.
  static GCOMM_HD F butterflies(F v) {
    const F odd = real(_mm256_setr_epi32(0, kSign, 0, kSign, 0, kSign, 0, kSign));
    const F pairs = real(_mm256_setr_epi32(0, 0, kSign, kSign, 0, 0, kSign, kSign));
    const F upper = real(_mm256_setr_epi32(0, 0, 0, 0, kSign, kSign, kSign, kSign));
    v = add(_mm256_permute_ps(v, 0xB1), _mm256_xor_ps(v, odd));
    v = add(_mm256_permute_ps(v, 0x4E), _mm256_xor_ps(v, pairs));
    return add(_mm256_permute2f128_ps(v, v, 1), _mm256_xor_ps(v, upper));
  }
  static GCOMM_HD I sign_bits(std::uint32_t word, int first) {
    const I to_top = sub(_mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24), set(first));
    return and_(_mm256_sllv_epi32(set(static_cast<std::int32_t>(word)), to_top), set(kSign));
  }

  static GCOMM_HD I maxima(const I* v) { return maxima_halves(maxima4(v), maxima4(v + 4)); }

 private:
  static constexpr std::int32_t kSign = static_cast<std::int32_t>(0x80000000u);

  // In each 128-bit half, element b is the largest of that half of v[b].
  static GCOMM_HD I maxima4(const I* v) {
    const I first = max(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    const I second = max(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    return max(_mm256_unpacklo_epi64(first, second), _mm256_unpackhi_epi64(first, second));
  }
  static GCOMM_HD I maxima_halves(I low, I high) {
    return max(_mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
  }
};

}  // namespace gcomm::codec
