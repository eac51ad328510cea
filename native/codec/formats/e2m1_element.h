// Four bits an element: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Levels are twice the value, so that they are
// whole numbers; code 8 (minus nothing) is level 0.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/minifloat.h"

namespace gcomm::codec {

struct E2M1Element {
  using Mini = Minifloat<1, 0, 0x40C00000>;
  static constexpr float kQMax = 6.0f;
  static constexpr bool kHasNaN = false;
  static constexpr bool kHasInf = false;
  static constexpr bool kSearchable = true;
  static constexpr bool kPacked = true;

  template <class V>
  static GCOMM_HD typename V::I encode(typename V::F y) {
    const auto bits = V::bits(y);
    return with_sign<V>(Mini::template nearest<V>(V::and_(bits, V::set(0x7FFFFFFF))), bits);
  }
  template <class V>
  static GCOMM_HD typename V::I encode_stochastic(typename V::F y, typename V::I u) {
    const auto bits = V::bits(y);
    return with_sign<V>(Mini::template stochastic<V>(V::and_(bits, V::set(0x7FFFFFFF)), u), bits);
  }
  template <class V>
  static GCOMM_HD typename V::F decode(typename V::I level) {
    return V::mul(V::to_float(level), V::set(0.5f));
  }

  // Two codes a byte, neighbours.
  template <int block>
  static GCOMM_HD void pack_pairs(const std::uint8_t* u, std::uint8_t* out) {
    for (int j = 0; j < block / 2; ++j) {
      std::uint16_t pair;
      __builtin_memcpy(&pair, u + 2 * j, sizeof pair);
      out[j] = static_cast<std::uint8_t>(pair | pair >> 4);
    }
  }
  template <int block>
  static GCOMM_HD void unpack_pairs(const std::uint8_t* in, std::uint8_t* level) {
    for (int j = 0; j < block / 2; ++j) {
      const std::uint16_t pair = static_cast<std::uint16_t>(level_of(in[j] & 15) | level_of(in[j] >> 4) << 8);
      __builtin_memcpy(level + 2 * j, &pair, sizeof pair);
    }
  }

 private:
  template <class V>
  static GCOMM_HD typename V::I with_sign(typename V::I magnitude, typename V::I bits) {
    return V::or_(magnitude, V::and_(V::template shr<28>(bits), V::set(8)));
  }
  static GCOMM_HD std::uint8_t level_of(int code) {
    const int m = code & 7;
    const int twice = m + (m > 4 ? m - 4 : 0) + (m > 6 ? 2 : 0);  // 0 1 2 3 4 6 8 12
    return static_cast<std::uint8_t>(code & 8 ? -twice : twice);
  }
};

}  // namespace gcomm::codec
