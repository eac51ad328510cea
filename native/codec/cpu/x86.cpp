// x86-64: every driver is built, and the processor decides which may run.
#include "codec/block_codec.h"

namespace gcomm::codec {

const Driver* find_driver(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return &scalar_driver();
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? &avx2_driver() : nullptr;
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                 ? &avx512_driver()
                 : nullptr;
  }
  return nullptr;
}

}  // namespace gcomm::codec
