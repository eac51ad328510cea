#pragma once

#include "codec/formats/fp8_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Fp8E5M2 : E5M2Element {
  static constexpr const char* kName = "fp8_e5m2";
  using Scale = Bf16Scale<0x77920000>;
  static constexpr int kBlock = 128;
  static constexpr int kCodeBytes = 128;
};

}  // namespace gcomm::codec
