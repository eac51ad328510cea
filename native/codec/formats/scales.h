// How the scale of a block is chosen, written and read: docs/wire-format.md, sections 1.3 to 1.5.
//
// choose() gets the block's largest finite magnitude over the divisor of the format (and nvfp4's tile scale)
// and works on as many blocks at once as there are lanes. value() is what a decoder makes of the stored scale;
// where that is no finite number the block decodes to NaN.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/minifloat.h"

namespace gcomm::codec {

template <class V>
struct ChosenScale {
  typename V::I code;     // as stored
  typename V::F inverse;  // what x is multiplied by; 0 for a block of zeros
};

struct NoScale {
  static constexpr int kBytes = 0;
};

inline constexpr float kSmallestNormal = 0x1p-126f;

// max_scale: bits of the largest bf16 s with s * q_max <= FLT_MAX.
template <std::int32_t max_scale>
struct Bf16Scale {
  static constexpr int kBytes = 2;
  static constexpr bool kTileScale = false;
  static constexpr bool kHasLimit = false;
  static constexpr std::int32_t kMarked = 0x7FC0;

  template <class V>
  static GCOMM_HD ChosenScale<V> choose(typename V::F absmax, typename V::F divisor, typename V::F /*tile*/) {
    const auto t = V::bits(V::div(absmax, divisor));
    auto s = V::and_(V::add(t, V::set(0xFFFF)), V::set(static_cast<std::int32_t>(0xFFFF0000u)));
    s = V::min(V::max(s, V::set(0x00800000)), V::set(max_scale));
    const auto inverse = V::div(V::set(1.0f), V::real(s));
    const auto some = V::greater(absmax, V::set(0.0f));
    return {V::template shr<16>(V::select(some, s, V::set(0))), V::select(some, inverse, V::set(0.0f))};
  }
  template <class V>
  static GCOMM_HD typename V::F value(typename V::I code, typename V::F /*tile*/) {
    return V::real(V::template shl<16>(code));
  }
};

// From code `limited` on (scales near the top of binary32's range) |y| saturates at `limit` instead of the
// element's largest value, so that rounding up can't make element * scale infinite.
template <std::int32_t limited, int limit_value>
struct E8M0Scale {
  static constexpr int kBytes = 1;
  static constexpr bool kTileScale = false;
  static constexpr bool kHasLimit = true;
  static constexpr std::int32_t kLimited = limited;
  static constexpr std::int32_t kMarked = 255;

  template <class V>
  static GCOMM_HD ChosenScale<V> choose(typename V::F absmax, typename V::F divisor, typename V::F /*tile*/) {
    const auto t = V::bits(V::div(absmax, divisor));
    const auto code = V::max(V::template shr<23>(V::add(t, V::set(0x007FFFFF))), V::set(1));
    return {code, V::real(V::template shl<23>(V::sub(V::set(254), code)))};
  }
  template <class V>
  static GCOMM_HD typename V::F value(typename V::I code, typename V::F /*tile*/) {
    const auto power = V::template shl<23>(code);
    return V::real(V::max(power, V::set(0x00400000)));  // code 0 is 2^-127; 255 gives Inf
  }
  // y is finite.
  template <class V>
  static GCOMM_HD typename V::F limit(typename V::F y, typename V::I code) {
    const auto bits = V::bits(y);
    const auto a = V::and_(bits, V::set(0x7FFFFFFF));
    const auto least = V::min(a, V::bits(V::set(static_cast<float>(limit_value))));
    const auto limited_y = V::real(V::or_(least, V::xor_(bits, a)));
    return V::select(V::greater(code, V::set(limited - 1)), limited_y, y);
  }
};

// An e4m3 per block, times a binary32 per tile.
struct TwoLevelScale {
  static constexpr int kBytes = 1;
  static constexpr bool kTileScale = true;
  static constexpr bool kHasLimit = false;
  static constexpr std::int32_t kMarked = 0x7F;
  using E4M3 = Minifloat<3, -6, 0x43E00000>;

  // The tile's scale from its largest finite magnitude.
  static GCOMM_HD float tile(float absmax) {
    if (absmax == 0.0f) {
      return 0.0f;
    }
    const float g = absmax / 2688.0f;
    return g < kSmallestNormal ? kSmallestNormal : g > 0x1.86p116f ? 0x1.86p116f : g;
  }

  template <class V>
  static GCOMM_HD ChosenScale<V> choose(typename V::F absmax, typename V::F divisor, typename V::F tile) {
    const auto nothing = V::greater(V::set(kSmallestNormal), tile);
    const auto ratio = V::div(V::div(absmax, divisor), V::select(nothing, V::set(1.0f), tile));
    const auto r = V::select(nothing, V::set(0.0f), ratio);
    typename V::F rounded;
    auto code = E4M3::template nearest<V, 0, true>(r, rounded);
    const auto s = value<V>(code, tile);
    const auto small = V::greater(V::set(kSmallestNormal), s);
    code = V::select(small, V::set(0), code);
    const auto inverse = V::div(V::set(1.0f), V::select(small, V::set(1.0f), s));
    return {code, V::select(small, V::set(0.0f), inverse)};
  }
  template <class V>
  static GCOMM_HD typename V::F value(typename V::I code, typename V::F tile) {
    // Sign from bit 7 to 31, magnitude to 20; 0x7F and 0xFF are NaN.
    const auto moved = V::or_(V::template shl<24>(V::and_(code, V::set(0x80))),
                              V::template shl<20>(V::and_(code, V::set(0x7F))));
    const auto nan = V::greater(V::and_(code, V::set(0x7F)), V::set(0x7E));
    const auto value = V::mul(E4M3::template value<V>(moved), tile);
    return V::select(nan, V::real(V::set(0x7FC00000)), value);
  }
};

}  // namespace gcomm::codec
