#pragma once

#include "codec/formats/e2m1_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Nvfp4 : E2M1Element {
  static constexpr const char* kName = "nvfp4";
  using Scale = TwoLevelScale;
  static constexpr int kBlock = 16;
  static constexpr int kCodeBytes = kBlock / 2;

  static GCOMM_HD void pack(const std::uint8_t* u, std::uint8_t* out) { pack_pairs<kBlock>(u, out); }
  static GCOMM_HD void unpack(const std::uint8_t* in, std::uint8_t* level) { unpack_pairs<kBlock>(in, level); }
};

}  // namespace gcomm::codec
