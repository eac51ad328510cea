// The AVX-512 search as the library compiles it, over emulated intrinsics and under another name.
#include "avx512_emulation.h"

#define Avx512Lanes EmulatedAvx512Lanes
#include "mapl/cpu/lanes_avx512.h"
#include "mapl/cpu/search.h"

const gcomm::mapl::Driver& emulated_avx512_search() {
  static constexpr gcomm::mapl::Driver kDriver = {&gcomm::mapl::Search<gcomm::mapl::Avx512Lanes>::nearest};
  return kDriver;
}
