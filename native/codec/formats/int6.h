#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/formats/scaled_int.h"

namespace gcomm::codec {

// 32 bytes of low nibbles, 16 bytes of high bit pairs.
struct Int6 : ScaledInt<31, 32, 0x7D040000> {
  static constexpr const char* kName = "int6";
  static constexpr int kBlock = 64;
  static constexpr int kCodeBytes = 48;
  static constexpr bool kPacked = true;

  template <class V>
  static GCOMM_HD void pack(const std::uint8_t* u, std::size_t count, std::uint8_t* out) {
    for (std::size_t b = 0; b < count / kBlock; ++b) {
      pack_block(u + b * kBlock, out + b * kCodeBytes);
    }
  }
  template <class V>
  static GCOMM_HD void unpack(const std::uint8_t* in, std::size_t count, std::uint8_t* level) {
    for (std::size_t b = 0; b < count / kBlock; ++b) {
      unpack_block(in + b * kCodeBytes, level + b * kBlock);
    }
  }

 private:
  static GCOMM_HD void pack_block(const std::uint8_t* u, std::uint8_t* out) {
    for (int j = 0; j < 32; ++j) {
      out[j] = static_cast<std::uint8_t>((u[j] & 15) | (u[j + 32] & 15) << 4);
    }
    for (int j = 0; j < 16; ++j) {
      out[32 + j] = static_cast<std::uint8_t>(u[j] >> 4 | (u[j + 16] >> 4) << 2 | (u[j + 32] >> 4) << 4 |
                                              (u[j + 48] >> 4) << 6);
    }
  }
  static GCOMM_HD void unpack_block(const std::uint8_t* in, std::uint8_t* level) {
    for (int j = 0; j < 16; ++j) {
      const int high = in[32 + j];
      level[j] = static_cast<std::uint8_t>(((in[j] & 15) | (high & 3) << 4) - 32);
      level[j + 16] = static_cast<std::uint8_t>(((in[j + 16] & 15) | (high >> 2 & 3) << 4) - 32);
      level[j + 32] = static_cast<std::uint8_t>((in[j] >> 4 | (high >> 4 & 3) << 4) - 32);
      level[j + 48] = static_cast<std::uint8_t>((in[j + 16] >> 4 | (high >> 6) << 4) - 32);
    }
  }
};

}  // namespace gcomm::codec
