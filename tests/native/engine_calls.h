// Sums of float32 tensors, one a rank, for tests of what becomes of a call.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine_world.h"

namespace gcomm::test {

inline constexpr std::uint64_t kCount = 300000;

struct Tensors {
  explicit Tensors(int ranks, float value = 1.0f)
      : data(static_cast<std::size_t>(ranks), std::vector<float>(kCount, value)) {}
  float* operator[](int rank) { return data[static_cast<std::size_t>(rank)].data(); }
  std::vector<std::vector<float>> data;
};

inline WorkRef sum(World& world, int rank, float* memory, std::uint64_t count = kCount,
                   const char* spec = "bf16:min_bytes=0", double timeout_s = 0) {
  const TensorView tensor{memory, memory, count, {}};
  return world[rank].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(rank, spec),
                                timeout_s);
}

inline void wait(const WorkRef& work) {
  CHECK(work->wait_until(Clock::now() + std::chrono::seconds(60)), "it hangs");
}

}  // namespace gcomm::test
