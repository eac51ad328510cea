#pragma once

#include "codec/formats/scaled_int.h"

namespace gcomm::codec {

struct Int8 : ScaledInt<127, 0, 0x7C010000> {
  static constexpr const char* kName = "int8";
  static constexpr int kBlock = 128;
  static constexpr int kCodeBytes = 128;
  static constexpr bool kPacked = false;  // a byte is its own level
};

}  // namespace gcomm::codec
