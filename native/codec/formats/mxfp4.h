#pragma once

#include "codec/formats/e2m1_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Mxfp4 : E2M1Element {
  static constexpr const char* kName = "mxfp4";
  using Scale = E8M0Scale<127 + 126, 3>;
  static constexpr int kBlock = 32;
  static constexpr int kCodeBytes = kBlock / 2;
};

}  // namespace gcomm::codec
