// What the integer formats have in common: q = round(y) in -q_max..q_max, stored as q + bias.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

template <int q_max, int bias, std::int32_t max_scale>
struct ScaledInt {
  using Scale = Bf16Scale<max_scale>;
  static constexpr float kQMax = static_cast<float>(q_max);
  static constexpr bool kHasNaN = false;
  static constexpr bool kSearchable = false;

  template <class V>
  static GCOMM_HD typename V::I encode(typename V::F y) {
    return code<V>(V::round(y));
  }
  template <class V>
  static GCOMM_HD typename V::I encode_stochastic(typename V::F y, typename V::I u) {
    return code<V>(V::floor(V::add(y, V::mul(V::to_float(u), V::set(0x1p-16f)))));
  }
  // level: a byte that unpack() wrote, sign-extended.
  template <class V>
  static GCOMM_HD typename V::F decode(typename V::I level) {
    return V::to_float(level);
  }

 private:
  template <class V>
  static GCOMM_HD typename V::I code(typename V::I q) {
    const auto clamped = V::min(V::max(q, V::set(-q_max)), V::set(q_max));
    if constexpr (bias == 0) {
      return clamped;
    } else {
      return V::add(clamped, V::set(bias));
    }
  }
};

}  // namespace gcomm::codec
