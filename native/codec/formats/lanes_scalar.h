// One lane: the vocabulary in which formats, scales and transforms are written. Every instruction set has a
// class of the same members in codec/cpu/lanes_*.h; this one is plain C++, so it is also what a GPU thread
// uses.
//
//   F  binary32 lanes     I  32-bit integer lanes (signed compare, wrapping arithmetic)     M  a mask over
//   lanes
//
// All members are exact IEEE operations or integer operations, hence the same bits from every class.
#pragma once

#include <cstdint>

#include "base/float.h"
#include "base/hd.h"

namespace gcomm::codec {

struct ScalarLanes {
  using F = float;
  using I = std::int32_t;
  using M = bool;
  static constexpr int kLanes = 1;
  static constexpr int kGroup = 1;  // elements that store_bytes() writes at once

  static GCOMM_HD F set(float value) { return value; }
  static GCOMM_HD I set(std::int32_t value) { return value; }

  // No alignment is asked for, except by stream(): 16 bytes.
  static GCOMM_HD F load(const float* p) {
    F v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static GCOMM_HD void store(float* p, F v) { __builtin_memcpy(p, &v, sizeof v); }
  static GCOMM_HD void stream(float* p, F v) { store(p, v); }
  static GCOMM_HD void end_stream() {}  // what was streamed is seen by other threads in the usual order
  static GCOMM_HD I load(const std::int32_t* p) { return *p; }
  static GCOMM_HD void store(std::int32_t* p, I v) { *p = v; }
  static GCOMM_HD I load_u8(const std::uint8_t* p) { return *p; }
  static GCOMM_HD I load_i8(const std::uint8_t* p) { return static_cast<std::int8_t>(*p); }
  static GCOMM_HD I load_u16(const void* p) {
    std::uint16_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static GCOMM_HD F load_f16(const void* p) { return f16_to_float(static_cast<std::uint16_t>(load_u16(p))); }
  // The low byte, or the low half, of each lane; lanes fit (-128..127 or 0..65535).
  static GCOMM_HD void store_bytes(std::uint8_t* p, const I* v) { *p = static_cast<std::uint8_t>(v[0]); }
  static GCOMM_HD void store_u16(void* p, I v) {
    const std::uint16_t half = static_cast<std::uint16_t>(v);
    __builtin_memcpy(p, &half, sizeof half);
  }
  // Nearest even; lanes are within the range of fp16.
  static GCOMM_HD void store_f16(void* p, F v) { store_u16(p, float_to_f16(v)); }
  static GCOMM_HD void prefetch(const void* p) { __builtin_prefetch(p); }

  static GCOMM_HD F add(F a, F b) { return a + b; }
  static GCOMM_HD F sub(F a, F b) { return a - b; }
  static GCOMM_HD F mul(F a, F b) { return a * b; }
  static GCOMM_HD F div(F a, F b) { return a / b; }

  static GCOMM_HD I bits(F v) { return static_cast<I>(float_bits(v)); }
  static GCOMM_HD F real(I v) { return bits_float(static_cast<std::uint32_t>(v)); }
  static GCOMM_HD F to_float(I v) { return static_cast<float>(v); }
  // Negative lanes of v (its sign bit is set) take `minus`.
  static GCOMM_HD I by_sign(F v, I minus, I plus) { return bits(v) < 0 ? minus : plus; }
  // Nearest even; |v| <= 2^22, anything for what lies beyond.
  static GCOMM_HD I round(F v) { return sub(bits(v + 0x1.8p23f), 0x4B400000); }
  // Towards zero; |v| < 2^31.
  static GCOMM_HD I truncate(F v) { return static_cast<I>(v); }
  // Rounded down; |v| <= 2^22.
  static GCOMM_HD I floor(F v) {
    const I nearest = round(v);
    return sub(nearest, static_cast<I>(to_float(nearest) > v));
  }

  static GCOMM_HD I add(I a, I b) {
    return static_cast<I>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
  static GCOMM_HD I sub(I a, I b) {
    return static_cast<I>(static_cast<std::uint32_t>(a) - static_cast<std::uint32_t>(b));
  }
  static GCOMM_HD I and_(I a, I b) { return a & b; }
  static GCOMM_HD I or_(I a, I b) { return a | b; }
  static GCOMM_HD I xor_(I a, I b) { return a ^ b; }
  static GCOMM_HD I min(I a, I b) { return a < b ? a : b; }
  static GCOMM_HD I max(I a, I b) { return a > b ? a : b; }
  template <int n>
  static GCOMM_HD I shl(I v) {
    return static_cast<I>(static_cast<std::uint32_t>(v) << n);
  }
  template <int n>
  static GCOMM_HD I shr(I v) {  // logical
    return static_cast<I>(static_cast<std::uint32_t>(v) >> n);
  }
  template <int n>
  static GCOMM_HD I sar(I v) {  // arithmetic
    return v >> n;
  }

  static GCOMM_HD M greater(I a, I b) { return a > b; }
  static GCOMM_HD M greater(F a, F b) { return a > b; }
  static GCOMM_HD M is_nan(F v) { return v != v; }
  static GCOMM_HD bool any(M m) { return m; }
  static GCOMM_HD I select(M m, I yes, I no) { return m ? yes : no; }
  static GCOMM_HD F select(M m, F yes, F no) { return m ? yes : no; }

  // The Hadamard stages of strides 1, 2, ... lanes / 2, within one vector.
  static GCOMM_HD F butterflies(F v) { return v; }
  // Bit first + k of word, moved to the sign bit of lane k.
  static GCOMM_HD I sign_bits(std::uint32_t word, int first) {
    return static_cast<I>(word << (31 - first) & 0x80000000u);
  }

  // Packed codes to bytes, by a table of 16: out[2 j] from the low half of in[j], out[2 j + 1] from the high
  // one; 16 bytes in, 32 out.
  static GCOMM_HD void look_up_nibbles(const std::uint8_t* in, const std::uint8_t* table, std::uint8_t* out) {
    for (int j = 0; j < 16; ++j) {
      out[2 * j] = table[in[j] & 15];
      out[2 * j + 1] = table[in[j] >> 4];
    }
  }
  // out[8 p + j] from bits 2 p and 2 p + 1 of in[j], and with has_high bit 8 p + j of a 32-bit number after
  // them; 8 (12) bytes in, 32 out.
  template <bool has_high>
  static GCOMM_HD void look_up_pairs(const std::uint8_t* in, const std::uint8_t* table, std::uint8_t* out) {
    for (int p = 0; p < 4; ++p) {
      for (int j = 0; j < 8; ++j) {
        const int high = has_high ? in[8 + p] >> j & 1 : 0;
        out[8 * p + j] = table[(in[j] >> (2 * p) & 3) | high << 2];
      }
    }
  }

  // Lane b of the result is the largest lane of v[b].
  static GCOMM_HD I maxima(const I* v) { return v[0]; }
};

}  // namespace gcomm::codec
