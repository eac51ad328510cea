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

  // value gets what the code will be decoded to.
  template <class V>
  static GCOMM_HD typename V::I encode(typename V::F y, typename V::F& value) {
    const auto q = clamp<V>(V::round(y));
    value = V::to_float(q);
    return with_bias<V>(q);
  }
  template <class V>
  static GCOMM_HD typename V::I encode_stochastic(typename V::F y, typename V::I u) {
    return with_bias<V>(clamp<V>(V::floor(V::add(y, V::mul(V::to_float(u), V::set(0x1p-16f))))));
  }
  // level: a byte that unpack() wrote, sign-extended.
  template <class V>
  static GCOMM_HD typename V::F decode(typename V::I level) {
    return V::to_float(level);
  }

 private:
  template <class V>
  static GCOMM_HD typename V::I clamp(typename V::I q) {
    return V::min(V::max(q, V::set(-q_max)), V::set(q_max));
  }
  template <class V>
  static GCOMM_HD typename V::I with_bias(typename V::I q) {
    if constexpr (bias == 0) {
      return q;
    } else {
      return V::add(q, V::set(bias));
    }
  }
};

}  // namespace gcomm::codec
