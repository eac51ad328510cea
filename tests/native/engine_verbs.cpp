// Every other verb against its replay, bit for bit, and what goes without a codec.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "engine_replay.h"
#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

using ll = unsigned long long;

std::vector<Bytes> inputs_of(int ranks, DType dtype, std::uint64_t count, std::uint64_t seed,
                             bool any_bytes = false) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < ranks; ++r) {
    const std::uint64_t own = seed * 1000 + static_cast<std::uint64_t>(r);
    inputs.push_back(any_bytes ? random_bytes(count * dtype_size(dtype), own)
                               : random_tensor(dtype, count, own));
  }
  return inputs;
}

Bytes part(const Bytes& tensor, std::size_t begin, std::size_t size) {
  return {tensor.begin() + static_cast<std::ptrdiff_t>(begin),
          tensor.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

void reduce_scatter(World& world, const std::string& spec, DType dtype, std::uint64_t count, bool average,
                    bool in_place, const std::string& key, int calls) {
  Replay replay(spec.empty() ? "fp32" : spec, world.size(), key);
  const auto n = static_cast<std::uint64_t>(world.size());
  for (int call = 0; call < calls; ++call) {
    std::vector<Bytes> inputs =
        inputs_of(world.size(), dtype, n * count, count + static_cast<std::uint64_t>(call));
    const std::vector<Bytes> before = inputs;
    std::vector<Bytes> outputs(inputs.size(), Bytes(count * dtype_size(dtype), 0xA5));
    const std::size_t bytes = count * dtype_size(dtype);
    world.all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      void* output = in_place ? inputs[i].data() + i * bytes : outputs[i].data();
      return world[r].reduce_scatter({inputs[i].data(), output, count, key}, dtype,
                                     average ? collective::Op::kAvg : collective::Op::kSum,
                                     world.codec(r, spec), 0);
    });
    const std::vector<Bytes> expected = replay.reduce_scatter(before, dtype, average);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      CHECK((in_place ? part(inputs[i], i * bytes, bytes) : outputs[i]) == expected[i],
            "reduce_scatter rank %zu of %d, %s, %llu elements", i, world.size(), spec.c_str(), ll{count});
      if (!in_place) CHECK(inputs[i] == before[i], "the input was written");
    }
  }
}

void all_gather(World& world, const std::string& spec, DType dtype, std::uint64_t count, bool in_place,
                const std::string& key) {
  const auto n = static_cast<std::size_t>(world.size());
  const std::vector<Bytes> inputs = inputs_of(world.size(), dtype, count, count, spec.empty());
  const std::size_t bytes = count * dtype_size(dtype);
  std::vector<Bytes> outputs(n, Bytes(n * bytes, 0xA5));
  Bytes expected;
  Replay replay(spec.empty() ? "fp32" : spec, world.size(), key);
  for (std::size_t i = 0; i < n; ++i) {
    const Bytes got = spec.empty()
                          ? inputs[i]
                          : replay.moved(inputs[i], dtype, static_cast<int>(i), std::max(1, world.size() - 1));
    expected.insert(expected.end(), got.begin(), got.end());
    if (in_place)
      std::copy(inputs[i].begin(), inputs[i].end(),
                outputs[i].begin() + static_cast<std::ptrdiff_t>(i * bytes));
  }
  world.all([&](int r) {
    const auto i = static_cast<std::size_t>(r);
    const void* input = in_place ? outputs[i].data() + i * bytes : inputs[i].data();
    return world[r].all_gather({input, outputs[i].data(), count, key}, dtype, world.codec(r, spec), 0);
  });
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(outputs[i] == expected, "all_gather rank %zu of %zu, %s, %llu elements", i, n, spec.c_str(),
          ll{count});
  }
}

void broadcast(World& world, const std::string& spec, DType dtype, std::uint64_t count, int root,
               const std::string& key) {
  std::vector<Bytes> data = inputs_of(world.size(), dtype, count, count, spec.empty());
  Replay replay(spec.empty() ? "fp32" : spec, world.size(), key);
  const Bytes& input = data[static_cast<std::size_t>(root)];
  const Bytes expected = spec.empty() ? input : replay.moved(input, dtype, root, std::max(1, world.size() - 1));
  world.all([&](int r) {
    void* memory = data[static_cast<std::size_t>(r)].data();
    return world[r].broadcast({memory, memory, count, key}, dtype, root, world.codec(r, spec), 0);
  });
  for (std::size_t i = 0; i < data.size(); ++i) {
    CHECK(data[i] == expected, "broadcast from %d, rank %zu, %s, %llu elements", root, i, spec.c_str(),
          ll{count});
  }
}

// counts[a][b]: what a sends b.
void all_to_all(World& world, const std::string& spec, DType dtype,
                const std::vector<std::vector<std::uint64_t>>& counts) {
  const auto n = static_cast<std::size_t>(world.size());
  const std::size_t item = dtype_size(dtype);
  std::vector<Bytes> inputs, outputs;
  std::vector<std::vector<std::uint64_t>> receives(n, std::vector<std::uint64_t>(n));
  for (std::size_t a = 0; a < n; ++a) {
    const std::uint64_t total = std::accumulate(counts[a].begin(), counts[a].end(), std::uint64_t{0});
    inputs.push_back(spec.empty() ? random_bytes(total * item, a) : random_tensor(dtype, total, a));
    for (std::size_t b = 0; b < n; ++b) receives[b][a] = counts[a][b];
  }
  std::vector<Bytes> expected(n);
  for (std::size_t b = 0; b < n; ++b) {
    for (std::size_t a = 0; a < n; ++a) {
      std::uint64_t begin = 0;
      for (std::size_t c = 0; c < b; ++c) begin += counts[a][c];
      const Bytes sent = part(inputs[a], begin * item, counts[a][b] * item);
      // Nearest rounding: the place in the random stream does not matter.
      Replay replay(spec.empty() ? "fp32" : spec, world.size());
      const Bytes got = spec.empty() || a == b
                            ? sent
                            : replay.moved(sent, dtype, static_cast<int>(a), std::max(1, world.size() - 1));
      expected[b].insert(expected[b].end(), got.begin(), got.end());
    }
    outputs.push_back(Bytes(expected[b].size(), 0xA5));
  }
  world.all([&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return world[r].all_to_all({inputs[i].data(), outputs[i].data(), 0, {}}, counts[i].data(),
                               receives[i].data(), dtype, world.codec(r, spec), 0);
  });
  for (std::size_t i = 0; i < n; ++i) {
    CHECK(outputs[i] == expected[i], "all_to_all rank %zu of %zu, %s, first count %llu", i, n, spec.c_str(),
          ll{counts[0][0]});
  }
}

void send_recv(World& world, const std::string& spec, DType dtype, std::uint64_t count,
               const std::string& key) {
  if (world.size() == 1) return;
  const Bytes input =
      spec.empty() ? random_bytes(count * dtype_size(dtype), count) : random_tensor(dtype, count, count);
  Bytes output(input.size(), 0xA5);
  const int source = world.size() - 1;
  Replay replay(spec.empty() ? "fp32" : spec, 2, key);
  Replay by_source(spec.empty() ? "fp32" : spec, world.size(), key);
  const Bytes expected = spec.empty() ? input : by_source.moved(input, dtype, source, 1);
  const WorkRef received =
      world[0].recv({nullptr, output.data(), count, key}, dtype, source, world.codec(0, spec), 0);
  const WorkRef sent =
      world[source].send({input.data(), nullptr, count, key}, dtype, 0, world.codec(source, spec), 0);
  for (const WorkRef& work : {sent, received}) {
    CHECK(work->wait_until(Clock::now() + std::chrono::seconds(60)) && work->code() == Code::kOk, "%s",
          work->text().c_str());
  }
  CHECK(output == expected, "send and recv, %s, %llu elements", spec.c_str(), ll{count});
}

std::set<std::uint64_t> counts(int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return {0, 1, 2, 7, n - 1, n + 1, 4095, 4096, 4097, 3 * 4096 + 5, 9973, 100003};
}

std::vector<std::vector<std::uint64_t>> matrix(int ranks, std::uint64_t count) {
  std::vector<std::vector<std::uint64_t>> all;
  for (int a = 0; a < ranks; ++a) {
    all.emplace_back();
    for (int b = 0; b < ranks; ++b)
      all.back().push_back((a + 2 * b) % 3 == 0 ? 0 : count * static_cast<std::uint64_t>(a + b));
  }
  return all;
}

void everything(const WorldOptions& options, const std::vector<std::string>& specs) {
  World world(options);
  const int ranks = options.size;
  for (const std::string& spec : specs) {
    for (const std::uint64_t count : counts(ranks)) {
      if (left_out()) continue;
      const DType dtype = spec.empty() || count % 2 == 0 ? DType::kF32
                          : count % 3 == 0               ? DType::kBF16
                                                         : DType::kF16;
      const bool in_place = count % 4 == 1;
      const std::string key = spec.find("ef=1") != std::string::npos ? "k" + std::to_string(count) : "";
      reduce_scatter(world, spec, DType::kF32, count, count % 2 == 1, in_place, key.empty() ? "" : key + "rs",
                     2);
      all_gather(world, spec, dtype, count, in_place, key.empty() ? "" : key + "ag");
      broadcast(world, spec, dtype, count, static_cast<int>(count) % ranks, key.empty() ? "" : key + "b");
      if (key.empty()) all_to_all(world, spec, dtype, matrix(ranks, count));
      send_recv(world, spec, dtype, count, key);
    }
  }
  world.all([&](int r) { return world[r].barrier(0); });
}

void every_dtype() {
  World world({.size = 3, .slot_bytes = std::size_t{128} << 10});
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    all_gather(world, "", dtype, 40001, false, "");
    broadcast(world, "", dtype, 40001, 1, "");
    all_to_all(world, "", dtype, matrix(3, 20001));
    send_recv(world, "", dtype, 40001, "");
  }
}

// A rank's sends to one peer stay in order, and those to different peers don't wait for one another.
void order_of_point_to_point() {
  World world({.size = 3});
  constexpr int kMessages = 50;
  std::vector<std::vector<float>> received(kMessages, std::vector<float>(5000));
  std::vector<std::vector<float>> sent(kMessages);
  std::vector<WorkRef> works;
  for (int i = 0; i < kMessages; ++i) {
    const auto m = static_cast<std::size_t>(i);
    sent[m].assign(5000, static_cast<float>(i));
    works.push_back(world[0].send({sent[m].data(), nullptr, 5000, {}}, DType::kF32, 1, nullptr, 0));
  }
  // Nobody has received from rank 0 yet; rank 2's message passes all the same.
  float token = 3;
  float got = 0;
  const WorkRef other = world[0].recv({nullptr, &got, 1, {}}, DType::kF32, 2, nullptr, 0);
  works.push_back(world[2].send({&token, nullptr, 1, {}}, DType::kF32, 0, nullptr, 0));
  CHECK(other->wait_until(Clock::now() + std::chrono::seconds(30)) && got == 3);
  for (int i = 0; i < kMessages; ++i) {
    works.push_back(world[1].recv({nullptr, received[static_cast<std::size_t>(i)].data(), 5000, {}},
                                  DType::kF32, 0, nullptr, 0));
  }
  for (const WorkRef& work : works) {
    CHECK(work->wait_until(Clock::now() + std::chrono::seconds(60)) && work->code() == Code::kOk, "%s",
          work->text().c_str());
  }
  CHECK(received == sent);
}

// Send and recv both ways at once between all pairs, while collectives run.
void lanes_side_by_side() {
  World world({.size = 3, .transport = "tcp"});
  constexpr std::uint64_t kCount = 300007;
  std::vector<std::vector<float>> data(9, std::vector<float>(kCount)), got = data;
  std::vector<std::vector<float>> sums(3, std::vector<float>(kCount, 1.0f));
  std::vector<WorkRef> works;
  for (std::size_t a = 0; a < 3; ++a) {
    const auto rank = static_cast<int>(a);
    const TensorView tensor{sums[a].data(), sums[a].data(), kCount, {}};
    works.push_back(world[rank].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, nullptr, 0));
    for (std::size_t b = 0; b < 3; ++b) {
      if (a == b) continue;
      data[3 * a + b].assign(kCount, static_cast<float>(10 * a + b));
      works.push_back(world[rank].send({data[3 * a + b].data(), nullptr, kCount, {}}, DType::kF32,
                                       static_cast<int>(b), nullptr, 0));
      works.push_back(world[rank].recv({nullptr, got[3 * b + a].data(), kCount, {}}, DType::kF32,
                                       static_cast<int>(b), nullptr, 0));
    }
  }
  for (const WorkRef& work : works) {
    CHECK(work->wait_until(Clock::now() + std::chrono::seconds(60)) && work->code() == Code::kOk, "%s",
          work->text().c_str());
  }
  CHECK(got == data);
  for (const auto& sum : sums) CHECK(std::all_of(sum.begin(), sum.end(), [](float v) { return v == 3.0f; }));
}

}  // namespace

int main() {
  const std::vector<std::string> specs = {"",
                                          "fp8_e4m3",
                                          "int4:min_bytes=0",
                                          "nvfp4:min_bytes=0",
                                          "hadamard+int8:min_bytes=0",
                                          "bf16:min_bytes=0",
                                          "int8:ef=1:min_bytes=0:rounding=stochastic"};
  for (int ranks = 1; ranks <= 4; ++ranks) everything({.size = ranks}, specs);
  everything({.size = 3, .slot_bytes = std::size_t{128} << 10}, {"", "fp32:min_bytes=0", "int4"});
  everything({.size = 2, .transport = "tcp"}, {"", "fp8_e4m3", "nvfp4:min_bytes=0"});
  everything({.size = 3, .transport = "tcp", .slot_bytes = std::size_t{128} << 10}, {"", "int8:crc=1"});
  every_dtype();
  order_of_point_to_point();
  lanes_side_by_side();
  return check::report("engine_verbs");
}
