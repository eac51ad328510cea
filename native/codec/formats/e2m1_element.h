// Four bits an element: a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6. Levels are twice the value, so that they
// are whole numbers; code 8 (minus nothing) is level 0.
#pragma once

#include <cstddef>
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
  static GCOMM_HD typename V::I encode(typename V::F y, typename V::F& value) {
    const auto code = Mini::template nearest<V, 8, true>(y, value);
    const auto sign = V::and_(V::bits(y), V::set(static_cast<std::int32_t>(0x80000000u)));
    value = V::add(V::real(V::or_(V::bits(value), sign)), V::set(0.0f));  // -0 becomes +0
    return code;
  }
  template <class V>
  static GCOMM_HD typename V::I encode_stochastic(typename V::F y, typename V::I u) {
    const auto bits = V::bits(y);
    const auto magnitude = Mini::template stochastic<V>(V::and_(bits, V::set(0x7FFFFFFF)), u);
    return V::or_(magnitude, V::and_(V::template shr<28>(bits), V::set(8)));
  }
  template <class V>
  static GCOMM_HD typename V::F decode(typename V::I level) {
    return V::mul(V::to_float(level), V::set(0.5f));
  }

  // Two codes a byte, neighbours, whatever the block.
  template <class V>
  static GCOMM_HD void pack(const std::uint8_t* u, std::size_t count, std::uint8_t* out) {
    for (std::size_t j = 0; j < count / 2; ++j) {
      std::uint16_t pair;
      __builtin_memcpy(&pair, u + 2 * j, sizeof pair);
      out[j] = static_cast<std::uint8_t>(pair | pair >> 4);
    }
  }
  template <class V>
  static GCOMM_HD void unpack(const std::uint8_t* in, std::size_t count, std::uint8_t* level) {
    constexpr std::uint8_t kLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, 255, 254, 253, 252, 250, 248, 244};
    std::size_t i = 0;
    for (; i + 32 <= count; i += 32) {
      V::look_up_nibbles(in + i / 2, kLevels, level + i);
    }
    for (; i < count; i += 2) {
      level[i] = kLevels[in[i / 2] & 15];
      level[i + 1] = kLevels[in[i / 2] >> 4];
    }
  }
};

}  // namespace gcomm::codec
