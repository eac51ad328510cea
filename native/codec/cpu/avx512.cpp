#include <immintrin.h>

#include "codec/cpu/driver_table.h"
#include "codec/cpu/lanes_avx512.h"

namespace gcomm::codec {

const Driver& avx512_driver() {
  static constexpr Driver kDriver = make_driver<Avx512Lanes>(AllFormats{});
  return kDriver;
}

}  // namespace gcomm::codec
