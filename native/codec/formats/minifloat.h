// Binary floating-point elements of a few bits, sign and magnitude: e4m3, e5m2, e2m1 (and, for stochastic
// rounding, bf16 and fp16). A magnitude code is (exponent - min_exponent) << mantissa, plus the count of units
// in the last place, so that codes are ordered as the values are and a carry runs into the exponent by itself.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace gcomm::codec {

// largest: the binary32 bits of the largest finite value.
template <int mantissa, int min_exponent, std::int32_t largest>
struct Minifloat {
  static constexpr std::int32_t kLargest = largest;
  static constexpr std::int32_t kMinField = (min_exponent + 127) << 23;
  static constexpr std::int32_t kToPower = (23 - mantissa) << 23;
  static constexpr std::int32_t kLargestCode = (largest - kMinField + (1 << 23)) >> (23 - mantissa);

  // The code of a finite y with `sign` as its sign bit (-128 makes a signed byte of it); *magnitude gets
  // |value|. Unless it saturates, y must not round to more than the largest value. Adding a power of two whose
  // last place is the format's unit at |y| rounds to nearest even; what it leaves in the last bits is |y| in
  // units. (The power must exist: not for bf16.)
  template <class V, std::int32_t sign, bool saturates>
  static GCOMM_HD typename V::I nearest(typename V::F y, typename V::F& magnitude) {
    auto a = V::and_(V::bits(y), V::set(0x7FFFFFFF));
    if constexpr (saturates) {
      a = V::min(a, V::set(kLargest));
    }
    const auto field = V::max(V::and_(a, V::set(0x7F800000)), V::set(kMinField));
    const auto power = V::add(field, V::set(kToPower));
    const auto sum = V::add(V::real(a), V::real(power));
    magnitude = V::sub(sum, V::real(power));
    // units + ((field - kMinField) at the code's place) + sign, with the constants gathered.
    constexpr std::int32_t kRest = -kToPower - (kMinField >> (23 - mantissa));
    const auto rest = V::by_sign(y, V::set(kRest + sign), V::set(kRest));
    return V::add(V::add(V::sub(V::bits(sum), field), V::template shr<23 - mantissa>(field)), rest);
  }

  // floor(a / unit + u / 2^16) exactly, u a 16-bit number.
  template <class V>
  static GCOMM_HD typename V::I stochastic(typename V::I a, typename V::I u) {
    a = V::min(a, V::set(kLargest));
    const auto field = V::max(V::and_(a, V::set(0x7F800000)), V::set(kMinField));
    const auto normal = V::real(V::or_(V::and_(a, V::set(0x007FFFFF)), V::set((127 + mantissa) << 23)));
    // In two steps, because bf16's 2^133 is no binary32.
    constexpr int kScale = mantissa - min_exponent;
    const auto half_way = V::mul(V::real(a), V::set(power_of_two(kScale / 2)));
    const auto denormal = V::mul(half_way, V::set(power_of_two(kScale - kScale / 2)));
    const auto in_units = V::select(V::greater(V::set(kMinField), a), denormal, normal);
    const auto fixed_point = V::truncate(V::mul(in_units, V::set(0x1p16f)));
    const auto units = V::template shr<16>(V::add(fixed_point, u));
    const auto code = V::add(units, V::template shr<23 - mantissa>(V::sub(field, V::set(kMinField))));
    return V::min(code, V::set(kLargestCode));
  }

  // Takes a finite code with its sign in the top bit and its magnitude from bit 23 - mantissa on: that is a
  // binary32 whose exponent is off by a constant.
  template <class V>
  static GCOMM_HD typename V::F value(typename V::I shifted) {
    return V::mul(V::real(shifted), V::set(power_of_two(126 + min_exponent)));
  }

 private:
  static constexpr float power_of_two(int n) {
    return __builtin_bit_cast(float, static_cast<std::int32_t>(n + 127) << 23);
  }
};

}  // namespace gcomm::codec
