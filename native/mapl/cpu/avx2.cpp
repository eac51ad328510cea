#include "mapl/cpu/lanes_avx2.h"
#include "mapl/cpu/search.h"

namespace gcomm::mapl {

const Driver& avx2_driver() {
  static constexpr Driver kDriver = {&Search<Avx2Lanes>::nearest};
  return kDriver;
}

}  // namespace gcomm::mapl
