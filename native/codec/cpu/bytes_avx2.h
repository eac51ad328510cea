// Packed codes to bytes with 256-bit registers: AVX2 and AVX-512 alike.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace gcomm::codec {

struct Avx2Bytes {
  static GCOMM_HD void look_up_nibbles(const std::uint8_t* in, const std::uint8_t* table, std::uint8_t* out) {
    const __m128i packed = load16(in);
    const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    const __m128i levels = load16(table);
    store16(out, _mm_shuffle_epi8(levels, _mm_unpacklo_epi8(low, high)));
    store16(out + 16, _mm_shuffle_epi8(levels, _mm_unpackhi_epi8(low, high)));
  }

  template <bool has_high>
  static GCOMM_HD void look_up_pairs(const std::uint8_t* in, const std::uint8_t* table, std::uint8_t* out) {
    const __m256i packed = _mm256_broadcastq_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in)));
    __m256i code =
        _mm256_and_si256(_mm256_srlv_epi64(packed, _mm256_setr_epi64x(0, 2, 4, 6)), _mm256_set1_epi8(3));
    if constexpr (has_high) {
      std::int32_t word;
      __builtin_memcpy(&word, in + 8, sizeof word);
      // Every byte sees the byte of the word that holds its bit, then that bit alone.
      const __m256i eighth = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
      const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
      const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), eighth), bit);
      code = _mm256_or_si256(code, _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit), _mm256_set1_epi8(4)));
    }
    const __m256i levels = _mm256_broadcastsi128_si256(load16(table));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_shuffle_epi8(levels, code));
  }

 private:
  static GCOMM_HD __m128i load16(const std::uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static GCOMM_HD void store16(std::uint8_t* p, __m128i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  }
};

}  // namespace gcomm::codec
