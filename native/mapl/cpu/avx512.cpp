#include <immintrin.h>

#include "mapl/cpu/lanes_avx512.h"
#include "mapl/cpu/search.h"

namespace gcomm::mapl {

const Driver& avx512_driver() {
  static constexpr Driver kDriver = {&Search<Avx512Lanes>::nearest};
  return kDriver;
}

}  // namespace gcomm::mapl
