#pragma once

#include "codec/formats/e2m1_element.h"
#include "codec/formats/scales.h"

namespace gcomm::codec {

struct Mxfp4 : E2M1Element {
  static constexpr const char* kName = "mxfp4";
  using Scale = E8M0Scale<127 + 126, 3>;
  static constexpr int kBlock = 32;
  static constexpr int kCodeBytes = kBlock / 2;

  static GCOMM_HD void pack(const std::uint8_t* u, std::uint8_t* out) { pack_pairs<kBlock>(u, out); }
  static GCOMM_HD void unpack(const std::uint8_t* in, std::uint8_t* level) { unpack_pairs<kBlock>(in, level); }
};

}  // namespace gcomm::codec
