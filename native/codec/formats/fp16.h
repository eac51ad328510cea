#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/minifloat.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

// Finite values saturate, Inf stays Inf, every NaN is canonical.
struct Fp16 {
  static constexpr const char* kName = "fp16";
  using Scale = NoScale;
  static constexpr int kBlock = 1;
  static constexpr int kCodeBytes = 2;
  static constexpr bool kHasNaN = true;
  static constexpr bool kSearchable = false;
  static constexpr std::int32_t kOverflow = 0x477FF000;

  template <class V>
  static GCOMM_HD typename V::F load(const std::uint8_t* p) {
    return V::load_f16(p);
  }
  template <class V>
  static GCOMM_HD void store(std::uint8_t* p, typename V::F x) {
    const auto bits = V::bits(x);
    V::store_f16(p, V::real(with_sign<V>(V::min(V::and_(bits, V::set(0x7FFFFFFF)), V::set(kLargest)), bits)));
  }
  template <class V>
  static GCOMM_HD void store_any(std::uint8_t* p, typename V::F x) {
    const auto bits = V::bits(x);
    const auto a = V::and_(bits, V::set(0x7FFFFFFF));
    const auto finite = with_sign<V>(V::min(a, V::set(kLargest)), bits);
    const auto infinite = V::select(V::greater(a, V::set(0x7F7FFFFF)), bits, finite);
    V::store_f16(p, V::real(V::select(V::greater(a, V::set(0x7F800000)), V::set(0x7FC00000), infinite)));
  }
  template <class V>
  static GCOMM_HD void store_stochastic(std::uint8_t* p, typename V::F x, typename V::I u) {
    const auto bits = V::bits(x);
    const auto a = V::and_(bits, V::set(0x7FFFFFFF));
    const auto sign = V::and_(V::template shr<16>(bits), V::set(0x8000));
    const auto code = V::or_(Minifloat<10, -14, kLargest>::template stochastic<V>(a, u), sign);
    const auto infinite = V::select(V::greater(a, V::set(0x7F7FFFFF)), V::or_(V::set(0x7C00), sign), code);
    V::store_u16(p, V::select(V::greater(a, V::set(0x7F800000)), V::set(0x7E00), infinite));
  }

 private:
  static constexpr std::int32_t kLargest = 0x477FE000;  // 65504

  template <class V>
  static GCOMM_HD typename V::I with_sign(typename V::I a, typename V::I bits) {
    return V::or_(a, V::and_(bits, V::set(static_cast<std::int32_t>(0x80000000u))));
  }
};

}  // namespace gcomm::codec
