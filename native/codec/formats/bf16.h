#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/minifloat.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

// Finite values saturate, Inf stays Inf, every NaN is canonical.
struct Bf16 {
  static constexpr const char* kName = "bf16";
  using Scale = NoScale;
  static constexpr int kBlock = 1;
  static constexpr int kCodeBytes = 2;
  static constexpr bool kHasNaN = true;
  static constexpr bool kSearchable = false;
  static constexpr std::int32_t kOverflow = 0x7F7F8000;

  template <class V>
  static GCOMM_HD typename V::F load(const std::uint8_t* p) {
    return V::real(V::template shl<16>(V::load_u16(p)));
  }
  template <class V>
  static GCOMM_HD void store(std::uint8_t* p, typename V::F x) {
    const auto bits = V::bits(x);
    V::store_u16(p, with_sign<V>(nearest<V>(V::and_(bits, V::set(0x7FFFFFFF))), bits));
  }
  template <class V>
  static GCOMM_HD void store_any(std::uint8_t* p, typename V::F x) {
    const auto bits = V::bits(x);
    const auto a = V::and_(bits, V::set(0x7FFFFFFF));
    V::store_u16(p, special<V>(a, with_sign<V>(nearest<V>(a), bits), bits));
  }
  template <class V>
  static GCOMM_HD void store_stochastic(std::uint8_t* p, typename V::F x, typename V::I u) {
    const auto bits = V::bits(x);
    const auto a = V::and_(bits, V::set(0x7FFFFFFF));
    const auto code = Minifloat<7, -126, kLargest>::template stochastic<V>(a, u);
    V::store_u16(p, special<V>(a, with_sign<V>(code, bits), bits));
  }

 private:
  static constexpr std::int32_t kLargest = 0x7F7F0000;

  template <class V>
  static GCOMM_HD typename V::I nearest(typename V::I a) {
    a = V::min(a, V::set(kLargest));
    const auto odd = V::and_(V::template shr<16>(a), V::set(1));
    return V::template shr<16>(V::add(V::add(a, V::set(0x7FFF)), odd));
  }
  template <class V>
  static GCOMM_HD typename V::I with_sign(typename V::I code, typename V::I bits) {
    return V::or_(code, V::and_(V::template shr<16>(bits), V::set(0x8000)));
  }
  template <class V>
  static GCOMM_HD typename V::I special(typename V::I a, typename V::I finite, typename V::I bits) {
    const auto inf = with_sign<V>(V::set(0x7F80), bits);
    const auto infinite = V::select(V::greater(a, V::set(0x7F7FFFFF)), inf, finite);
    return V::select(V::greater(a, V::set(0x7F800000)), V::set(0x7FC0), infinite);
  }
};

}  // namespace gcomm::codec
