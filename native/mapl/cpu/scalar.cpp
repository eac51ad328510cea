// The score as it is written down, codeword by codeword.
#include <cmath>

#include "mapl/cpu/driver.h"

namespace gcomm::mapl {
namespace {

void nearest(const Stage& stage, const float* z, std::size_t vectors, std::uint16_t* codes) {
  for (std::size_t v = 0; v < vectors; ++v) {
    const float* x = z + v * stage.subvector;
    float least = INFINITY;
    codes[v] = 0;
    for (std::size_t c = 0; c < stage.padded; ++c) {
      float score = stage.half_norms[c];
      for (std::size_t j = 0; j < stage.subvector; ++j) {
        score = std::fma(-x[j], stage.columns[j * stage.padded + c], score);
      }
      if (score < least) {
        least = score;
        codes[v] = static_cast<std::uint16_t>(c);
      }
    }
  }
}

}  // namespace

const Driver& scalar_driver() {
  static constexpr Driver kDriver = {nearest};
  return kDriver;
}

}  // namespace gcomm::mapl
