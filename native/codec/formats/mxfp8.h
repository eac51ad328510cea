#pragma once

#include "codec/formats/fp8_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Mxfp8 : E4M3Element {
  static constexpr const char* kName = "mxfp8";
  using Scale = E8M0Scale<127 + 120, 240>;
  static constexpr int kBlock = 32;
  static constexpr int kCodeBytes = 32;
};

}  // namespace gcomm::codec
