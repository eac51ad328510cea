#pragma once

#include "codec/formats/fp8_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Fp8E4M3 : E4M3Element {
  static constexpr const char* kName = "fp8_e4m3";
  using Scale = Bf16Scale<0x7B120000>;
  static constexpr int kBlock = 128;
  static constexpr int kCodeBytes = 128;
};

}  // namespace gcomm::codec
