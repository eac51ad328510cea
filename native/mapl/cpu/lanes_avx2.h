#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/hd.h"

namespace gcomm::mapl {

struct Avx2Lanes {
  using F = __m256;
  using I = __m256i;
  static constexpr std::size_t kLanes = 8;

  static GCOMM_HD F set(float v) { return _mm256_set1_ps(v); }
  static GCOMM_HD I set(std::int32_t v) { return _mm256_set1_epi32(v); }
  static GCOMM_HD F load(const float* p) { return _mm256_loadu_ps(p); }
  // c - a b, rounded once.
  static GCOMM_HD F minus_product(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  // Where v < best: best = v, at = begin.
  static GCOMM_HD void take_less(F v, std::int32_t begin, F& best, I& at) {
    const F less = _mm256_cmp_ps(v, best, _CMP_LT_OQ);
    best = _mm256_blendv_ps(best, v, less);
    at = _mm256_blendv_epi8(at, set(begin), _mm256_castps_si256(less));
  }
  // The least at + lane of those lanes where v is least.
  static GCOMM_HD std::int32_t first_least(F v, I at) {
    F least = _mm256_min_ps(v, _mm256_permute2f128_ps(v, v, 1));
    least = _mm256_min_ps(least, _mm256_permute_ps(least, 0x4E));
    least = _mm256_min_ps(least, _mm256_permute_ps(least, 0xB1));
    const I code = _mm256_add_epi32(at, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const F equal = _mm256_cmp_ps(v, least, _CMP_EQ_OQ);
    const I one = _mm256_blendv_epi8(set(INT32_MAX), code, _mm256_castps_si256(equal));
    __m128i first = _mm_min_epi32(_mm256_castsi256_si128(one), _mm256_extracti128_si256(one, 1));
    first = _mm_min_epi32(first, _mm_shuffle_epi32(first, 0x4E));
    first = _mm_min_epi32(first, _mm_shuffle_epi32(first, 0xB1));
    return _mm_cvtsi128_si32(first);
  }
};

}  // namespace gcomm::mapl
