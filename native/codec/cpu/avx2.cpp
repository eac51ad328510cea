#include "codec/cpu/driver_table.h"
#include "codec/cpu/lanes_avx2.h"

namespace gcomm::codec {

const Driver& avx2_driver() {
  static constexpr Driver kDriver = make_driver<Avx2Lanes>(AllFormats{});
  return kDriver;
}

}  // namespace gcomm::codec
