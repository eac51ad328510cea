// Rows for the tests of the mapl room.
#pragma once

#include <cstdint>
#include <vector>

namespace mapl_test {

// Sums of four uniform numbers, centred: near enough to normal, of standard deviation 1.15 size.
inline std::vector<float> normals(std::size_t count, std::uint64_t seed, float size) {
  std::vector<float> x(count);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& v : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::uint64_t word = state ^ (state >> 29);
    word *= 0xBF58476D1CE4E5B9u;
    word ^= word >> 32;
    float sum = 0.0f;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(word >> (16 * part) & 0xFFFF) - 32767.5f;
    }
    v = sum * 0x1p-15f * size;
  }
  return x;
}

}  // namespace mapl_test
