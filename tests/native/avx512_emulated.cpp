// The AVX-512 driver as the library compiles it, over emulated intrinsics and under another name.
#include "avx512_emulation.h"

#if defined(GCOMM_TEST_SIMDE)
#define Avx512Lanes SimdeAvx512Lanes
#define emulated_driver simde_avx512_driver
#else
#define Avx512Lanes EmulatedAvx512Lanes
#define emulated_driver emulated_avx512_driver
#endif
#include "codec/cpu/driver_table.h"
#include "codec/cpu/lanes_avx512.h"

const gcomm::codec::Driver& emulated_driver() {
  static constexpr gcomm::codec::Driver kDriver =
      gcomm::codec::make_driver<gcomm::codec::Avx512Lanes>(gcomm::codec::AllFormats{});
  return kDriver;
}
