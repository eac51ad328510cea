// Driver of one class of lanes: instantiates every loop for it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cpu/driver.h"
#include "codec/cpu/element_tile.h"
#include "codec/cpu/scaled_tile.h"
#include "transform/fwht.h"

namespace gcomm::codec {

// Sums and policies on a tile of floats. The buffers are whole tiles, so the last vector may run past count.
template <class V>
struct FloatTile {
  using F = typename V::F;
  static constexpr std::size_t kLanes = V::kLanes;

  static void divide(float* x, std::size_t count, float divisor) {
    const F by = V::set(divisor);
    for (std::size_t i = 0; i < count; i += kLanes) {
      V::store(x + i, V::div(V::load(x + i), by));
    }
  }
  static bool has_nonfinite(const float* x, std::size_t count) {
    auto top = V::set(0);
    for (std::size_t i = 0; i < count; i += kLanes) {
      top = V::max(top, V::and_(V::bits(V::load(x + i)), V::set(0x7FFFFFFF)));
    }
    return V::any(V::greater(top, V::set(0x7F7FFFFF)));
  }
  static void zero_nonfinite(float* x, std::size_t count) {
    for (std::size_t i = 0; i < count; i += kLanes) {
      const F v = V::load(x + i);
      V::store(x + i, V::select(special(v), V::set(0.0f), v));
    }
  }
  static void add_residual(float* x, const float* residual, std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V::store(x + i, add_saturating(V::load(x + i), V::load(residual + i)));
    }
    if (i < count) {
      alignas(64) float tail[kLanes] = {};
      __builtin_memcpy(tail, residual + i, (count - i) * sizeof(float));
      V::store(x + i, add_saturating(V::load(x + i), V::load(tail)));
    }
  }
  static void take_residual(const float* x, const float* decoded, float* residual, std::size_t count) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V::store(residual + i, lost(V::load(x + i), V::load(decoded + i)));
    }
    if (i < count) {
      // decoded may be the caller's own memory, which ends here.
      const std::size_t rest = (count - i) * sizeof(float);
      alignas(64) float tail[kLanes] = {};
      alignas(64) float decoded_tail[kLanes] = {};
      __builtin_memcpy(tail, x + i, rest);
      __builtin_memcpy(decoded_tail, decoded + i, rest);
      V::store(tail, lost(V::load(tail), V::load(decoded_tail)));
      __builtin_memcpy(residual + i, tail, rest);
    }
  }

 private:
  static GCOMM_HD typename V::M special(F v) {
    return V::greater(V::and_(V::bits(v), V::set(0x7FFFFFFF)), V::set(0x7F7FFFFF));
  }
  static GCOMM_HD F add_saturating(F x, F residual) {
    const F sum = V::add(x, residual);
    const auto sign = V::and_(V::bits(sum), V::set(static_cast<std::int32_t>(0x80000000u)));
    const F largest = V::real(V::or_(sign, V::set(0x7F7FFFFF)));
    return V::select(special(x), x, V::select(special(residual), x, V::select(special(sum), largest, sum)));
  }
  // A NaN or an Inf in x or in decoded shows in the difference.
  static GCOMM_HD F lost(F x, F decoded) {
    const F difference = V::sub(x, decoded);
    return V::select(special(difference), V::set(0.0f), difference);
  }
};

template <class T, class V>
constexpr FormatDriver format_driver() {
  if constexpr (T::Scale::kBytes == 0) {
    return {&ElementTile<T, V>::encode, &ElementTile<T, V>::encode_and_decode, &ElementTile<T, V>::decode};
  } else {
    return {&ScaledTile<T, V>::encode, &ScaledTile<T, V>::encode_and_decode, &ScaledTile<T, V>::decode};
  }
}

template <class T, class V>
constexpr ElementDriver element_driver() {
  using Tile = ElementTile<T, V>;
  return {&Tile::load, &Tile::add, &Tile::store, &Tile::overflow};
}

template <class V, class... T>
constexpr Driver make_driver(FormatList<T...>) {
  using Floats = FloatTile<V>;
  using Fwht = transform::Fwht<V>;
  return {{format_driver<T, V>()...},
          {element_driver<Fp32, V>(), element_driver<Bf16, V>(), element_driver<Fp16, V>()},
          &Floats::divide,
          &Floats::has_nonfinite,
          &Floats::zero_nonfinite,
          &Floats::add_residual,
          &Floats::take_residual,
          &Fwht::forward,
          &Fwht::inverse};
}

}  // namespace gcomm::codec
