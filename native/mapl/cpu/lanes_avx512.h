#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hd.h"

namespace gcomm::mapl {

// <immintrin.h> comes before it, or what stands for it in tests.
struct Avx512Lanes {
  using F = __m512;
  using I = __m512i;
  static constexpr std::size_t kLanes = 16;

  static GCOMM_HD F set(float v) { return _mm512_set1_ps(v); }
  static GCOMM_HD I set(std::int32_t v) { return _mm512_set1_epi32(v); }
  static GCOMM_HD F load(const float* p) { return _mm512_loadu_ps(p); }
  // c - a b, rounded once.
  static GCOMM_HD F minus_product(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  // Where v < best: best = v, at = begin.
  static GCOMM_HD void take_less(F v, std::int32_t begin, F& best, I& at) {
    const __mmask16 less = _mm512_cmp_ps_mask(best, v, _CMP_GT_OQ);
    best = _mm512_mask_blend_ps(less, best, v);
    at = _mm512_mask_blend_epi32(less, at, set(begin));
  }
  // The least at + lane of those lanes where v is least.
  static GCOMM_HD std::int32_t first_least(F v, I at) {
    static constexpr std::int32_t kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    F least = lesser(v, _mm512_shuffle_f32x4(v, v, 0x4E));
    least = lesser(least, _mm512_shuffle_f32x4(least, least, 0xB1));
    least = lesser(least, _mm512_permute_ps(least, 0x4E));
    least = lesser(least, _mm512_permute_ps(least, 0xB1));
    const I code = _mm512_add_epi32(at, _mm512_loadu_si512(kLane));
    const __mmask16 more = _mm512_cmp_ps_mask(v, least, _CMP_GT_OQ);
    I first = _mm512_mask_blend_epi32(more, code, set(INT32_MAX));
    first = _mm512_min_epi32(first, _mm512_shuffle_i32x4(first, first, 0x4E));
    first = _mm512_min_epi32(first, _mm512_shuffle_i32x4(first, first, 0xB1));
    first = _mm512_min_epi32(first, _mm512_castps_si512(_mm512_permute_ps(_mm512_castsi512_ps(first), 0x4E)));
    first = _mm512_min_epi32(first, _mm512_castps_si512(_mm512_permute_ps(_mm512_castsi512_ps(first), 0xB1)));
    std::int32_t codes[kLanes];
    _mm512_storeu_si512(codes, first);
    return codes[0];
  }

 private:
  static GCOMM_HD F lesser(F a, F b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), a, b);
  }
};

}  // namespace gcomm::mapl
