#pragma once

#include "codec/formats/scaled_int.h"

namespace gcomm::codec {

// 8 bytes of low bit pairs, 4 bytes of high bits. Eight bytes are handled as one 64-bit number.
struct Int3 : ScaledInt<3, 4, 0x7EAA0000> {
  static constexpr const char* kName = "int3";
  static constexpr int kBlock = 32;
  static constexpr int kCodeBytes = 12;
  static constexpr bool kPacked = true;

  static GCOMM_HD void pack(const std::uint8_t* u, std::uint8_t* out) {
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
  static GCOMM_HD void unpack(const std::uint8_t* in, std::uint8_t* level) {
    std::uint64_t pairs;
    __builtin_memcpy(&pairs, in, sizeof pairs);
    for (int part = 0; part < 4; ++part) {
      // Byte j keeps bit j of the spread byte; what is not zero carries into bit 7.
      const std::uint64_t spread = (in[8 + part] * kLowBit) & 0x8040201008040201u;
      const std::uint64_t high = (spread + 0x7F7F7F7F7F7F7F7Fu) >> 7 & kLowBit;
      const std::uint64_t code = (pairs >> (2 * part) & kLowPair) | high << 2;
      // code - 4 in every byte: + 0xFC without a carry into the next one.
      const std::uint64_t minus4 = (code | 0x8080808080808080u) - 4 * kLowBit;
      const std::uint64_t eight = minus4 ^ 0x8080808080808080u;
      __builtin_memcpy(level + 8 * part, &eight, sizeof eight);
    }
  }

 private:
  static constexpr std::uint64_t kLowBit = 0x0101010101010101u;
  static constexpr std::uint64_t kLowPair = 0x0303030303030303u;
};

}  // namespace gcomm::codec
