// all_reduce against a replay, bit for bit: ranks, counts, formats, dtypes, operations, options, transports.
#include <cmath>
#include <set>

#include "engine_replay.h"
#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

struct Case {
  std::string spec;
  DType dtype = DType::kF32;
  std::uint64_t count = 0;
  bool average = false;
  bool in_place = false;
  Fill fill = Fill::kNormal;
  std::string key = {};
  int calls = 1;
};

void run_case(World& world, const Case& c) {
  if (left_out()) return;
  Replay replay(c.spec, world.size(), c.key);
  for (int call = 0; call < c.calls; ++call) {
    std::vector<Bytes> inputs;
    for (int r = 0; r < world.size(); ++r) {
      inputs.push_back(
          random_tensor(c.dtype, c.count, c.count * 31 + static_cast<std::uint64_t>(100 * call + r), c.fill));
    }
    const std::vector<Bytes> before = inputs;
    std::vector<Bytes> outputs(inputs.size(), Bytes(inputs[0].size(), 0xA5));
    const auto works = world.all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      const TensorView tensor{inputs[i].data(), c.in_place ? inputs[i].data() : outputs[i].data(), c.count,
                              c.key};
      return world[r].all_reduce(&tensor, 1, c.dtype, c.average ? collective::Op::kAvg : collective::Op::kSum,
                                 world.codec(r, c.spec), 0);
    });
    const Bytes expected = replay.all_reduce(before, c.dtype, c.average);
    const bool raw = replay.raw_all_reduce(c.dtype, c.count);
    for (int r = 0; r < world.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      CHECK((c.in_place ? inputs[i] : outputs[i]) == expected, "rank %d of %d, %s, %s[%llu], %s, call %d", r,
            world.size(), c.spec.c_str(), dtype_info(c.dtype).name, static_cast<unsigned long long>(c.count),
            c.average ? "avg" : "sum", call);
      if (!c.in_place) CHECK(inputs[i] == before[i], "the input was written");
      CHECK(c.count == 0 || works[i]->stats().raw_path == raw, "%s, %llu elements", c.spec.c_str(),
            static_cast<unsigned long long>(c.count));
    }
  }
}

std::set<std::uint64_t> counts(int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return {0, 1, 2, 7, n - 1, n + 1, 127, 4095, 4096, 4097, 3 * 4096 + 5, 9973, 100003};
}

void formats_and_counts(int ranks) {
  World world({.size = ranks});
  for (const codec::FormatInfo& format : codec::formats()) {
    for (const std::uint64_t count : counts(ranks)) {
      for (const bool always : {true, false}) {
        Case c{.spec = std::string(format.name) + (always ? ":min_bytes=0" : ""), .count = count};
        c.average = count % 2 == 1;
        c.in_place = count % 3 == 0;
        if (c.count == 100003 && ranks == 3 && !always) c.dtype = DType::kBF16;
        run_case(world, c);
      }
    }
  }
}

void dtypes_and_options(int ranks) {
  World world({.size = ranks});
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool average : {false, true}) {
      for (const char* spec : {"fp8_e4m3", "int4", "nvfp4", "bf16", "fp16", "fp32"}) {
        for (const Fill fill : {Fill::kNormal, Fill::kWithNonFinite, Fill::kHuge}) {
          run_case(world, {.spec = std::string(spec) + ":min_bytes=0",
                           .dtype = dtype,
                           .count = 20011,
                           .average = average,
                           .fill = fill});
        }
        run_case(world, {.spec = std::string(spec) + ":nonfinite=zero",
                         .dtype = dtype,
                         .count = 20011,
                         .average = average,
                         .fill = Fill::kWithNonFinite});
        run_case(world, {.spec = std::string(spec) + ":nonfinite=zero",
                         .dtype = dtype,
                         .count = 100,
                         .average = average,
                         .fill = Fill::kWithNonFinite});
      }
    }
  }
  for (const char* spec : {"hadamard+int4", "hadamard+int8:size=256", "hadamard+nvfp4:size=128",
                           "mxfp4:scale=search", "int8:crc=1"}) {
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4097}, std::uint64_t{50021}}) {
      run_case(world, {.spec = std::string(spec) + ":min_bytes=0", .count = count});
    }
  }
}

void stateful(int ranks) {
  World world({.size = ranks});
  for (const char* spec :
       {"int8:rounding=stochastic", "int4:rounding=stochastic:ef=1", "int3:ef=1", "nvfp4:ef=1",
        "fp8_e4m3:rounding=stochastic:seed=77", "hadamard+int4:ef=1", "int4:ef=1:nonfinite=zero"}) {
    for (const bool average : {false, true}) {
      run_case(world, {.spec = std::string(spec) + ":min_bytes=0",
                       .count = 30011,
                       .average = average,
                       .fill = Fill::kWithNonFinite,
                       .key = average ? "layer.1" : "layer.0",
                       .calls = 3});
    }
  }
  // Without a key nothing is kept: every call rounds alike.
  run_case(world, {.spec = "int8:rounding=stochastic", .count = 30011, .calls = 2});
}

void thresholds(int ranks) {
  World world({.size = ranks});
  const auto peers = static_cast<std::uint64_t>(std::max(1, ranks - 1));
  for (const std::uint64_t count : {8192 / peers, 8192 / peers + 1})
    run_case(world, {.spec = "int4", .count = count});
  for (const std::uint64_t count : {std::uint64_t{24999}, std::uint64_t{25000}}) {
    run_case(world, {.spec = "int4:min_bytes=100000", .count = count});
  }
  for (const std::uint64_t count : {std::uint64_t{200003}}) run_case(world, {.spec = "fp32", .count = count});
}

// 2000 chunks of the smallest slots, and one that is longer than a slot.
void many_chunks(const std::string& transport, int ranks) {
  World world({.size = ranks, .transport = transport, .slot_bytes = std::size_t{128} << 10});
  for (const char* spec : {"fp32:min_bytes=0", "fp32:min_bytes=100000000", "int8", "int2"}) {
    run_case(world, {.spec = spec, .count = 1500007});
    run_case(world, {.spec = spec, .count = 1500007, .average = true, .in_place = true});
  }
}

void over_tcp(int ranks) {
  World world({.size = ranks, .transport = "tcp"});
  for (const char* spec : {"fp8_e4m3", "nvfp4", "int4:min_bytes=0"}) {
    for (const std::uint64_t count : counts(ranks)) run_case(world, {.spec = spec, .count = count});
  }
}

void sums_overflow() {
  World world({.size = 3});
  for (const char* spec : {"", "fp8_e4m3:min_bytes=0", "fp16:min_bytes=0", "bf16:min_bytes=0"}) {
    for (const std::uint64_t count : {std::uint64_t{5}, std::uint64_t{20000}}) {
      std::vector<Bytes> tensors(3, from_floats(std::vector<float>(count, 60000.0f), DType::kF16));
      std::vector<Bytes> averages = tensors;
      for (const bool average : {false, true}) {
        auto& data = average ? averages : tensors;
        world.all([&](int r) {
          void* memory = data[static_cast<std::size_t>(r)].data();
          const TensorView tensor{memory, memory, count, {}};
          return world[r].all_reduce(&tensor, 1, DType::kF16,
                                     average ? collective::Op::kAvg : collective::Op::kSum,
                                     world.codec(r, spec), 0);
        });
        for (const Bytes& result : data) {
          for (const float value : to_floats(result, DType::kF16)) {
            // Formats without an Inf say NaN.
            if (average ? std::abs(value - 60000.0f) > 2048.0f : std::isfinite(value)) {
              CHECK(false, "%s: 3 x 60000 gave %g", spec, static_cast<double>(value));
              break;
            }
          }
        }
        CHECK(data[0] == data[1] && data[0] == data[2]);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::set<std::string> wanted(argv + 1, argv + argc);
  const auto run = [&](const char* name, auto&& test) {
    if (wanted.empty() || wanted.count(name) > 0) test();
  };
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run("formats", [&] { formats_and_counts(ranks); });
    run("thresholds", [&] { thresholds(ranks); });
  }
  for (const int ranks : {2, 3}) {
    run("dtypes", [&] { dtypes_and_options(ranks); });
    run("stateful", [&] { stateful(ranks); });
    run("tcp", [&] { over_tcp(ranks); });
    run("chunks", [&] { many_chunks("local", ranks); });
  }
  run("chunks", [&] { many_chunks("tcp", 2); });
  run("overflow", sums_overflow);
  return check::report("engine_all_reduce");
}
