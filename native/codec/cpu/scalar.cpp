#include "codec/cpu/driver_table.h"
#include "codec/formats/lanes_scalar.h"

namespace gcomm::codec {

const Driver& scalar_driver() {
  static constexpr Driver kDriver = make_driver<ScalarLanes>(AllFormats{});
  return kDriver;
}

}  // namespace gcomm::codec
