// Many tensors in one call: each comes out as it does alone.
#include <random>

#include "engine_replay.h"
#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

using Tensors = std::vector<Bytes>;

// By rank, tensor by tensor.
std::vector<Tensors> inputs(int ranks, DType dtype, const std::vector<std::uint64_t>& counts,
                            std::uint64_t seed) {
  std::vector<Tensors> all(static_cast<std::size_t>(ranks));
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      all[r].push_back(random_tensor(dtype, counts[i], seed * 1000003 + 1000 * i + r));
    }
  }
  return all;
}

std::string key_of(std::size_t i, bool keyed) { return keyed ? "layer." + std::to_string(i) + ".weight" : ""; }

std::vector<WorkRef> together(World& world, const std::vector<Tensors>& in, std::vector<Tensors>& out,
                              const std::vector<std::uint64_t>& counts, DType dtype, const std::string& spec,
                              bool average, bool keyed) {
  return world.all([&](int r) {
    const auto rank = static_cast<std::size_t>(r);
    std::vector<std::string> keys;
    std::vector<TensorView> tensors;
    for (std::size_t i = 0; i < counts.size(); ++i) keys.push_back(key_of(i, keyed));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tensors.push_back({in[rank][i].data(), out[rank][i].data(), counts[i], keys[i]});
    }
    return world[r].all_reduce(tensors.data(), tensors.size(), dtype,
                               average ? collective::Op::kAvg : collective::Op::kSum, world.codec(r, spec), 0);
  });
}

void equals_separate(const WorldOptions& options, const std::string& spec, DType dtype,
                     const std::vector<std::uint64_t>& counts, bool average, bool keyed) {
  World world(options);
  std::vector<Replay> replays;
  for (std::size_t i = 0; i < counts.size(); ++i) replays.emplace_back(spec, options.size, key_of(i, keyed));
  for (std::uint64_t call = 0; call < (keyed ? 3 : 1); ++call) {
    const std::vector<Tensors> in = inputs(options.size, dtype, counts, call);
    std::vector<Tensors> out = in;
    for (Tensors& tensors : out) {
      for (Bytes& tensor : tensors) std::fill(tensor.begin(), tensor.end(), 0xA5);
    }
    together(world, in, out, counts, dtype, spec, average, keyed);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      Tensors alone;
      for (const Tensors& tensors : in) alone.push_back(tensors[i]);
      const Bytes expected = replays[i].all_reduce(alone, dtype, average);
      for (std::size_t r = 0; r < out.size(); ++r) {
        CHECK(out[r][i] == expected, "rank %zu of %d, tensor %zu of %zu with %llu elements, %s, call %llu", r,
              options.size, i, counts.size(), static_cast<unsigned long long>(counts[i]), spec.c_str(),
              static_cast<unsigned long long>(call));
      }
    }
  }
}

std::vector<std::uint64_t> model_like(std::size_t n, std::uint64_t largest, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> counts;
  for (std::size_t i = 0; i < n; ++i) {
    counts.push_back(random() % 3 == 0   ? random() % 300
                     : random() % 2 == 0 ? random() % 20000
                                         : random() % largest);
  }
  return counts;
}

void nothing_at_all() {
  World world({.size = 3});
  world.all(
      [&](int r) { return world[r].all_reduce(nullptr, 0, DType::kF32, collective::Op::kSum, nullptr, 0); });
  equals_separate({.size = 3}, "int8:min_bytes=0", DType::kF32, {0, 0, 0}, false, false);
  equals_separate({.size = 3}, "int8", DType::kF32, {0, 100000, 0, 5, 0}, false, false);
}

}  // namespace

int main() {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const char* spec : {"fp8_e4m3", "int4:min_bytes=0", "nvfp4", "fp32:min_bytes=0"}) {
      equals_separate({.size = ranks}, spec, DType::kF32, model_like(25, 100000, 7), ranks % 2 == 0, false);
    }
    equals_separate({.size = ranks}, "hadamard+int4:min_bytes=0", DType::kBF16, {1, 5000, 70001, 2, 4096, 4097},
                    true, false);
    equals_separate({.size = ranks}, "int4:ef=1:rounding=stochastic:min_bytes=0", DType::kF32,
                    model_like(8, 50000, 9), false, true);
  }
  // Pieces of many tensors in a chunk, and many chunks.
  equals_separate({.size = 3, .slot_bytes = std::size_t{128} << 10}, "int8:min_bytes=0", DType::kF32,
                  model_like(60, 400000, 3), false, false);
  equals_separate({.size = 2, .transport = "tcp", .slot_bytes = std::size_t{128} << 10}, "int8", DType::kF32,
                  model_like(60, 400000, 4), false, false);
  equals_separate({.size = 2}, "int8", DType::kF32, model_like(400, 2000, 5), false, false);
  nothing_at_all();
  return check::report("engine_coalesced");
}
