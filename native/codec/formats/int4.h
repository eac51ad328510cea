#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/formats/scaled_int.h"

namespace gcomm::codec {

struct Int4 : ScaledInt<7, 8, 0x7E120000> {
  static constexpr const char* kName = "int4";
  static constexpr int kBlock = 64;
  static constexpr int kCodeBytes = 32;
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
      out[j] = static_cast<std::uint8_t>(u[j] | u[j + 32] << 4);
    }
  }
  static GCOMM_HD void unpack_block(const std::uint8_t* in, std::uint8_t* level) {
    for (int j = 0; j < 32; ++j) {
      level[j] = static_cast<std::uint8_t>((in[j] & 15) - 8);
      level[j + 32] = static_cast<std::uint8_t>((in[j] >> 4) - 8);
    }
  }
};

}  // namespace gcomm::codec
