// Loads and stores of eight lanes; elements of a matrix as fp32: conversion, nonfinite=zero, error feedback.
#pragma once

#include <immintrin.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/hd.h"
#include "gift/products.h"

namespace gcomm::gift {

GCOMM_HD std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }
GCOMM_HD __m256i first_lanes(std::size_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
template <bool kMasked>
GCOMM_HD __m256 load(const float* p, __m256i mask) {
  return kMasked ? _mm256_maskload_ps(p, mask) : _mm256_loadu_ps(p);
}
template <bool kMasked>
GCOMM_HD void store(float* p, __m256i mask, __m256 x) {
  if constexpr (kMasked) {
    _mm256_maskstore_ps(p, mask, x);
  } else {
    _mm256_storeu_ps(p, x);
  }
}
// Into the second-level cache: what the loops work on fills the first.
GCOMM_HD void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// One way of reading a matrix, fixed at compile time: the loops below it have no branches.
template <DType kType, bool kZero, bool kAdd>
struct Avx2Reader {
  static constexpr std::size_t kSize = kType == DType::kF32 ? 4 : 2;

  // Elements at .. at + 7.
  static GCOMM_HD __m256 load(const MatrixView& g, std::size_t at) {
    const __m256 x = widen(static_cast<const std::uint8_t*>(g.data) + kSize * at);
    if constexpr (kAdd) {
      return finish(x, _mm256_loadu_ps(g.addend + at));
    }
    return finish(x, _mm256_setzero_ps());
  }
  // The first n of them, 0 < n < 8; the other lanes are +0.
  static GCOMM_HD __m256 load_some(const MatrixView& g, std::size_t at, std::size_t n) {
    alignas(32) std::uint8_t elements[32] = {};
    alignas(32) float addend[8] = {};
    std::memcpy(elements, static_cast<const std::uint8_t*>(g.data) + kSize * at, kSize * n);
    if constexpr (kAdd) {
      std::memcpy(addend, g.addend + at, 4 * n);
    }
    return finish(widen(elements), _mm256_load_ps(addend));
  }

 private:
  static GCOMM_HD __m256 widen(const std::uint8_t* p) {
    if constexpr (kType == DType::kF32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    } else {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      if constexpr (kType == DType::kF16) {
        return _mm256_cvtph_ps(halves);
      }
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }
  }
  static GCOMM_HD __m256 finite(__m256 x) {
    const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    return _mm256_cmp_ps(magnitude, _mm256_set1_ps(FLT_MAX), _CMP_LE_OQ);
  }
  static GCOMM_HD __m256 finish(__m256 x, [[maybe_unused]] __m256 addend) {
    if constexpr (kZero) {
      x = _mm256_and_ps(x, finite(x));
    }
    if constexpr (kAdd) {
      const __m256 sum = _mm256_add_ps(x, addend);
      const __m256 bounded =
          _mm256_min_ps(_mm256_max_ps(sum, _mm256_set1_ps(-FLT_MAX)), _mm256_set1_ps(FLT_MAX));
      x = _mm256_blendv_ps(x, bounded, _mm256_and_ps(finite(x), finite(addend)));
    }
    return x;
  }
};

}  // namespace gcomm::gift
