#include "mapl/cpu/driver.h"

namespace gcomm::mapl {

const Driver& find_driver(codec::Isa isa) {
  if (isa == codec::Isa::kAvx512 && __builtin_cpu_supports("avx512f")) {
    return avx512_driver();
  }
  const bool wide =
      isa != codec::Isa::kScalar && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return wide ? avx2_driver() : scalar_driver();
}

}  // namespace gcomm::mapl
