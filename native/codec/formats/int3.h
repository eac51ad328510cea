#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/formats/scaled_int.h"

namespace gcomm::codec {

// 8 bytes of low bit pairs, 4 bytes of high bits. Eight bytes are handled as one 64-bit number.
struct Int3 : ScaledInt<3, 4, 0x7EAA0000> {
  static constexpr const char* kName = "int3";
  static constexpr int kBlock = 32;
  static constexpr int kCodeBytes = 12;
  static constexpr bool kPacked = true;

  template <class V>
  static GCOMM_HD void pack(const std::uint8_t* u, std::size_t count, std::uint8_t* out) {
    for (std::size_t b = 0; b < count / kBlock; ++b) {
      pack_block(u + b * kBlock, out + b * kCodeBytes);
    }
  }
  template <class V>
  static GCOMM_HD void unpack(const std::uint8_t* in, std::size_t count, std::uint8_t* level) {
    constexpr std::uint8_t kLevels[16] = {252, 253, 254, 255, 0, 1, 2, 3};
    for (std::size_t b = 0; b < count / kBlock; ++b) {
      V::template look_up_pairs<true>(in + b * kCodeBytes, kLevels, level + b * kBlock);
    }
  }

 private:
  static GCOMM_HD void pack_block(const std::uint8_t* u, std::uint8_t* out) {
    std::uint64_t pairs = 0;
    std::uint32_t high = 0;
    for (int part = 0; part < 4; ++part) {
      std::uint64_t eight;
      __builtin_memcpy(&eight, u + 8 * part, sizeof eight);
      pairs |= (eight & kLowPair) << (2 * part);
      // Bit 2 of byte j goes to bit 56 + j of the product, and nothing else gets there.
      const std::uint64_t gathered = ((eight >> 2 & kLowBit) * 0x0102040810204080u) >> 56;
      high |= static_cast<std::uint32_t>(gathered) << (8 * part);
    }
    __builtin_memcpy(out, &pairs, sizeof pairs);
    __builtin_memcpy(out + 8, &high, sizeof high);
  }

  static constexpr std::uint64_t kLowBit = 0x0101010101010101u;
  static constexpr std::uint64_t kLowPair = 0x0303030303030303u;
};

}  // namespace gcomm::codec
