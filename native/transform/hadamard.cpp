#include "transform/hadamard.h"

#include "base/philox.h"

namespace gcomm::transform {

std::vector<std::uint32_t> hadamard_signs(std::uint64_t seed, std::size_t count) {
  std::vector<std::uint32_t> signs((count + 31) / 32);
  for (std::size_t word = 0; word < signs.size(); ++word) {
    const PhiloxBlock block = philox4x32_10(seed, {{static_cast<std::uint32_t>(word / 4), 0, 0, 0x48414441u}});
    signs[word] = block.word[word % 4];
  }
  return signs;
}

}  // namespace gcomm::transform
