#pragma once

#include "codec/formats/e2m1_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Nvfp4 : E2M1Element {
  static constexpr const char* kName = "nvfp4";
  using Scale = TwoLevelScale;
  static constexpr int kBlock = 16;
  static constexpr int kCodeBytes = kBlock / 2;
};

}  // namespace gcomm::codec
