#include "gift/cpu/driver.h"

namespace gcomm::gift {

const Driver& find_driver(codec::Isa isa) {
  // kAvx512 takes these loops, too: there are none of its own.
  const bool wide = isa != codec::Isa::kScalar && __builtin_cpu_supports("avx2") &&
                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return wide ? avx2_driver() : scalar_driver();
}

}  // namespace gcomm::gift
