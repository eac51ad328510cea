#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/formats/scaled_int.h"

namespace gcomm::codec {

// The four levels -3, -1, 1, 3: no zero. For remainders, and with error feedback.
struct Int2 {
  static constexpr const char* kName = "int2";
  using Scale = Bf16Scale<0x7EAA0000>;
  static constexpr int kBlock = 32;
  static constexpr int kCodeBytes = 8;
  static constexpr float kQMax = 3.0f;
  static constexpr bool kHasNaN = false;
  static constexpr bool kSearchable = false;
  static constexpr bool kPacked = true;

  template <class V>
  static GCOMM_HD typename V::I encode(typename V::F y, typename V::F& value) {
    const auto code = clamp<V>(V::add(V::floor(V::mul(y, V::set(0.5f))), V::set(2)));
    value = V::to_float(V::sub(V::template shl<1>(code), V::set(3)));
    return code;
  }
  template <class V>
  static GCOMM_HD typename V::I encode_stochastic(typename V::F y, typename V::I u) {
    const auto fraction = V::mul(V::to_float(u), V::set(0x1p-16f));
    return clamp<V>(V::floor(V::add(V::mul(V::add(y, V::set(3.0f)), V::set(0.5f)), fraction)));
  }
  template <class V>
  static GCOMM_HD typename V::F decode(typename V::I level) {
    return V::to_float(level);
  }

  template <class V>
  static GCOMM_HD void pack(const std::uint8_t* u, std::size_t count, std::uint8_t* out) {
    for (std::size_t b = 0; b < count / kBlock; ++b) {
      pack_block(u + b * kBlock, out + b * kCodeBytes);
    }
  }
  template <class V>
  static GCOMM_HD void unpack(const std::uint8_t* in, std::size_t count, std::uint8_t* level) {
    constexpr std::uint8_t kLevels[16] = {253, 255, 1, 3};
    for (std::size_t b = 0; b < count / kBlock; ++b) {
      V::template look_up_pairs<false>(in + b * kCodeBytes, kLevels, level + b * kBlock);
    }
  }

 private:
  static GCOMM_HD void pack_block(const std::uint8_t* u, std::uint8_t* out) {
    std::uint64_t pairs = 0;
    for (int part = 0; part < 4; ++part) {
      std::uint64_t eight;
      __builtin_memcpy(&eight, u + 8 * part, sizeof eight);
      pairs |= eight << (2 * part);
    }
    __builtin_memcpy(out, &pairs, sizeof pairs);
  }

  template <class V>
  static GCOMM_HD typename V::I clamp(typename V::I code) {
    return V::min(V::max(code, V::set(0)), V::set(3));
  }
};

}  // namespace gcomm::codec
