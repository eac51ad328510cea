#pragma once

#include <cstdint>

#include "base/hd.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

// The elements themselves; every NaN canonical.
struct Fp32 {
  static constexpr const char* kName = "fp32";
  using Scale = NoScale;
  static constexpr int kBlock = 1;
  static constexpr int kCodeBytes = 4;
  static constexpr bool kHasNaN = true;
  static constexpr bool kSearchable = false;
  static constexpr std::int32_t kOverflow = 0x7F800000;  // magnitudes from here on are Inf in this format

  template <class V>
  static GCOMM_HD typename V::F load(const std::uint8_t* p) {
    return V::load(reinterpret_cast<const float*>(p));
  }
  // x is finite.
  template <class V>
  static GCOMM_HD void store(std::uint8_t* p, typename V::F x) {
    V::store(reinterpret_cast<float*>(p), x);
  }
  template <class V>
  static GCOMM_HD void store_any(std::uint8_t* p, typename V::F x) {
    store<V>(p, V::select(V::is_nan(x), V::real(V::set(0x7FC00000)), x));
  }
  template <class V>
  static GCOMM_HD void store_stochastic(std::uint8_t* p, typename V::F x, typename V::I /*u*/) {
    store_any<V>(p, x);
  }
};

}  // namespace gcomm::codec
