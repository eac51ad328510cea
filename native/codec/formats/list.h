// Every wire format, in the order in which it is listed to users. Everything that must know them all (drivers,
// the registry, tests, benchmarks) walks this list; the index in it is the format's number inside the process,
// and the name is what travels.
#pragma once

#include "codec/formats/bf16.h"
#include "codec/formats/fp16.h"
#include "codec/formats/fp32.h"
#include "codec/formats/fp8_e4m3.h"
#include "codec/formats/fp8_e5m2.h"
#include "codec/formats/int2.h"
#include "codec/formats/int3.h"
#include "codec/formats/int4.h"
#include "codec/formats/int6.h"
#include "codec/formats/int8.h"
#include "codec/formats/mxfp4.h"
#include "codec/formats/mxfp8.h"
#include "codec/formats/nvfp4.h"

namespace gcomm::codec {

template <class... Formats>
struct FormatList {
  static constexpr int kSize = sizeof...(Formats);
};

using AllFormats =
    FormatList<Fp32, Bf16, Fp16, Fp8E4M3, Fp8E5M2, Int8, Int6, Int4, Int3, Int2, Mxfp8, Mxfp4, Nvfp4>;

}  // namespace gcomm::codec
