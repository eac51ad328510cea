// One byte an element, e4m3 or e5m2, as OCP's 8-bit floating point specification has them.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/minifloat.h"

namespace gcomm::codec {

template <int mantissa, int min_exponent, std::int32_t largest, bool has_inf>
struct Fp8Element {
  using Mini = Minifloat<mantissa, min_exponent, largest>;
  static constexpr float kQMax = __builtin_bit_cast(float, largest);
  static constexpr bool kHasNaN = true;
  static constexpr bool kHasInf = has_inf;
  static constexpr bool kSearchable = false;
  static constexpr int kFirstSpecial = Mini::kLargestCode + 1;  // magnitude codes from here on are no numbers

  // |y| <= 1.01 q_max, as every scale of ours makes it. value gets what the code will be decoded to.
  template <class V>
  static GCOMM_HD typename V::I encode(typename V::F y, typename V::F& value) {
    const auto code = Mini::template nearest<V, -128, false>(y, value);
    value =
        V::real(V::or_(V::bits(value), V::and_(V::bits(y), V::set(static_cast<std::int32_t>(0x80000000u)))));
    return code;
  }
  template <class V>
  static GCOMM_HD typename V::I encode_stochastic(typename V::F y, typename V::I u) {
    const auto bits = V::bits(y);
    return signed_code<V>(Mini::template stochastic<V>(V::and_(bits, V::set(0x7FFFFFFF)), u), bits);
  }
  // For lanes whose x is a NaN or an Inf.
  template <class V>
  static GCOMM_HD typename V::I encode_special(typename V::F x) {
    const auto nan = V::set(0x7F);
    if constexpr (has_inf) {
      return V::select(V::is_nan(x), nan, signed_code<V>(V::set(0x7C), V::bits(x)));
    } else {
      return nan;
    }
  }

  template <class V>
  static GCOMM_HD typename V::F decode(typename V::I level) {
    constexpr std::int32_t kKeep = static_cast<std::int32_t>(0x80000000u | 0x7Fu << (23 - mantissa));
    return Mini::template value<V>(V::and_(V::template shl<23 - mantissa>(level), V::set(kKeep)));
  }
  // The same for any code.
  template <class V>
  static GCOMM_HD typename V::F decode_any(typename V::I level) {
    const auto magnitude = V::and_(level, V::set(0x7F));
    auto special = V::set(0x7FC00000);
    if constexpr (has_inf) {
      const auto sign = V::and_(level, V::set(static_cast<std::int32_t>(0x80000000u)));
      special = V::select(V::greater(magnitude, V::set(0x7C)), special, V::or_(sign, V::set(0x7F800000)));
    }
    const auto is_special = V::greater(magnitude, V::set(kFirstSpecial - 1));
    return V::select(is_special, V::real(special), decode<V>(level));
  }

  // A byte is its own level.
  static constexpr bool kPacked = false;

 private:
  // As a signed byte in a lane.
  template <class V>
  static GCOMM_HD typename V::I signed_code(typename V::I magnitude, typename V::I bits) {
    return V::or_(magnitude, V::and_(V::template sar<24>(bits), V::set(-128)));
  }
};

using E4M3Element = Fp8Element<3, -6, 0x43E00000, false>;
using E5M2Element = Fp8Element<2, -14, 0x47600000, true>;

}  // namespace gcomm::codec
