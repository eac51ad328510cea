// The search over one class of lanes V, codewords side by side: every lane keeps the first least score of its
// own codewords, and the lanes are compared at the end.
#pragma once

#include "mapl/cpu/driver.h"

namespace gcomm::mapl {

template <class V>
struct Search {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr std::size_t kLanes = V::kLanes;
  static_assert(kSearchGroup % (2 * kLanes) == 0);

  static void nearest(const Stage& stage, const float* z, std::size_t vectors, std::uint16_t* codes) {
    for (std::size_t v = 0; v < vectors; v += kSearchVectors) {
      if (stage.subvector == 8) {
        block<8>(stage, z + v * 8, codes + v);
      } else {
        block<0>(stage, z + v * stage.subvector, codes + v);
      }
    }
  }

 private:
  // Two vectors of codewords for each of six sub-vectors: twelve chains, as many as hide an addition's latency,
  // beside them two registers of codewords and one of z.
  // kLength: the sub-vectors' length where the compiler may know it, else 0.
  template <std::size_t kLength>
  static void block(const Stage& stage, const float* z, std::uint16_t* codes) {
    const std::size_t length = kLength > 0 ? kLength : stage.subvector;
    F best[kSearchVectors];
    I where[kSearchVectors];
#pragma GCC unroll 6
    for (std::size_t r = 0; r < kSearchVectors; ++r) {
      best[r] = V::set(__builtin_inff());
      where[r] = V::set(0);
    }
    for (std::size_t c = 0; c < stage.padded; c += 2 * kLanes) {
      F low[kSearchVectors];
      F high[kSearchVectors];
#pragma GCC unroll 6
      for (std::size_t r = 0; r < kSearchVectors; ++r) {
        low[r] = V::load(stage.half_norms + c);
        high[r] = V::load(stage.half_norms + c + kLanes);
      }
      const float* column = stage.columns + c;
#pragma GCC unroll 8
      for (std::size_t j = 0; j < length; ++j) {
        const F first = V::load(column);
        const F second = V::load(column + kLanes);
#pragma GCC unroll 6
        for (std::size_t r = 0; r < kSearchVectors; ++r) {
          const F x = V::set(z[r * length + j]);
          low[r] = V::minus_product(x, first, low[r]);
          high[r] = V::minus_product(x, second, high[r]);
        }
        column += stage.padded;
      }
#pragma GCC unroll 6
      for (std::size_t r = 0; r < kSearchVectors; ++r) {
        V::take_less(low[r], static_cast<std::int32_t>(c), best[r], where[r]);
        V::take_less(high[r], static_cast<std::int32_t>(c + kLanes), best[r], where[r]);
      }
    }
#pragma GCC unroll 6
    for (std::size_t r = 0; r < kSearchVectors; ++r) {
      codes[r] = static_cast<std::uint16_t>(V::first_least(best[r], where[r]));
    }
  }
};

}  // namespace gcomm::mapl
