// Ranks that call differently: one error, the same on all, nothing written, and the communicator goes on.
#include <functional>
#include <map>

#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

constexpr std::uint64_t kRoom = 3 << 20;  // elements of every buffer

// One rank's memory, and a call on it by name.
struct Rank {
  std::vector<float> input = std::vector<float>(kRoom, 1.0f);
  std::vector<float> output = std::vector<float>(kRoom, -7.0f);

  bool untouched() const {
    for (std::size_t i = 0; i < kRoom; ++i) {
      if (input[i] != 1.0f || output[i] != -7.0f) return false;
    }
    return true;
  }
};

using Start = std::function<WorkRef(World&, int rank, Rank&)>;

Start all_reduce(std::vector<std::uint64_t> counts, const char* spec, DType dtype = DType::kF32,
                 bool average = false, const char* key = "") {
  return [=](World& world, int rank, Rank& memory) {
    std::vector<TensorView> tensors;
    std::uint64_t begin = 0;
    for (const std::uint64_t count : counts) {
      tensors.push_back({memory.input.data() + begin, memory.input.data() + begin, count, key});
      begin += count;
    }
    return world[rank].all_reduce(tensors.data(), tensors.size(), dtype,
                                  average ? collective::Op::kAvg : collective::Op::kSum,
                                  world.codec(rank, spec), 0);
  };
}

Start all_to_all(std::uint64_t extra) {
  return [=](World& world, int rank, Rank& memory) {
    const auto n = static_cast<std::size_t>(world.size());
    std::vector<std::uint64_t> send(n, 1000), receive(n, 1000);
    send[(static_cast<std::size_t>(rank) + 1) % n] += extra;
    return world[rank].all_to_all({memory.input.data(), memory.output.data(), 0, {}}, send.data(),
                                  receive.data(), DType::kF32, nullptr, 0);
  };
}

std::map<std::string, Start> variants() {
  return {
      {"small", all_reduce({1000}, "int8")},
      {"large", all_reduce({1000000}, "int8")},
      {"large, one more", all_reduce({1000001}, "int8")},
      {"huge, many chunks", all_reduce({3000000}, "int8:min_bytes=0")},
      {"exact", all_reduce({1000000}, "")},
      {"average", all_reduce({1000000}, "int8", DType::kF32, true)},
      {"other codec", all_reduce({1000000}, "int4")},
      {"other option", all_reduce({1000000}, "int8:seed=5")},
      {"bf16", all_reduce({1000000}, "int8", DType::kBF16)},
      {"key", all_reduce({1000000}, "int8", DType::kF32, false, "k")},
      {"two tensors", all_reduce({500000, 500000}, "int8")},
      {"feedback", all_reduce({1000000}, "int8:ef=1", DType::kF32, false, "k")},
      {"raise", all_reduce({1000000}, "int8:nonfinite=raise")},
      {"empty", all_reduce({0}, "int8")},
      {"no tensors", all_reduce({}, "int8")},
      {"barrier", [](World& world, int rank, Rank&) { return world[rank].barrier(0); }},
      {"all_gather",
       [](World& world, int rank, Rank& memory) {
         return world[rank].all_gather({memory.input.data(), memory.output.data(), 500000, {}}, DType::kF32,
                                       nullptr, 0);
       }},
      {"reduce_scatter",
       [](World& world, int rank, Rank& memory) {
         return world[rank].reduce_scatter({memory.input.data(), memory.output.data(), 500000, {}}, DType::kF32,
                                           collective::Op::kSum, world.codec(rank, "int8"), 0);
       }},
      {"broadcast from 0",
       [](World& world, int rank, Rank& memory) {
         return world[rank].broadcast({memory.input.data(), memory.input.data(), 2000000, {}}, DType::kF32, 0,
                                      nullptr, 0);
       }},
      {"broadcast from 1",
       [](World& world, int rank, Rank& memory) {
         return world[rank].broadcast({memory.input.data(), memory.input.data(), 2000000, {}}, DType::kF32, 1,
                                      nullptr, 0);
       }},
      {"all_to_all", all_to_all(0)},
  };
}

void check_goes_on(World& world) {
  std::vector<std::vector<float>> data(static_cast<std::size_t>(world.size()),
                                       std::vector<float>(300000, 1.0f));
  world.all([&](int r) {
    float* memory = data[static_cast<std::size_t>(r)].data();
    const TensorView tensor{memory, memory, 300000, {}};
    return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum,
                               world.codec(r, "bf16:min_bytes=0"), 0);
  });
  for (const auto& result : data) {
    CHECK(result.front() == static_cast<float>(world.size()) &&
          result.back() == static_cast<float>(world.size()));
  }
}

// All ranks but one call `common`.
void disagree(World& world, std::vector<Rank>& memory, const Start& common, const Start& odd, int odd_rank,
              const std::string& name) {
  const auto works = world.all(
      [&](int r) { return (r == odd_rank ? odd : common)(world, r, memory[static_cast<std::size_t>(r)]); },
      Code::kMismatch);
  for (std::size_t r = 0; r < works.size(); ++r) {
    CHECK(works[r]->text() == works[0]->text(), "%s", name.c_str());
    CHECK(works[r]->text().find("rank " + std::to_string(r) + ": ") != std::string::npos, "%s: %s",
          name.c_str(), works[r]->text().c_str());
    CHECK(works[r]->peer() == (world.size() == 2 ? -1 : odd_rank), "%s: %d", name.c_str(), works[r]->peer());
  }
}

void matrix(const WorldOptions& options) {
  World world(options);
  std::vector<Rank> memory(static_cast<std::size_t>(options.size));
  const auto all = variants();
  int round = 0;
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = std::next(a); b != all.end(); ++b, ++round) {
      disagree(world, memory, a->second, b->second, round % options.size, a->first + " / " + b->first);
      if (round % 10 == 0) check_goes_on(world);
    }
  }
  check_goes_on(world);
  for (const Rank& rank : memory) CHECK(rank.untouched());
}

// One sends more than the other expects: every rank hears of it, also those whose own counts are right.
void all_to_all_counts() {
  World world({.size = 4});
  std::vector<Rank> memory(4);
  for (int round = 0; round < 3; ++round) {
    const auto works = world.all(
        [&](int r) { return all_to_all(r == 2 ? 1u : 0u)(world, r, memory[static_cast<std::size_t>(r)]); },
        Code::kMismatch);
    CHECK(works[0]->text() == works[1]->text() && works[0]->text() == works[3]->text());
    CHECK(
        works[0]->text().find("rank 2: all_to_all(float32, send [1000, 1000, 1000, 1001]") != std::string::npos,
        "%s", works[0]->text().c_str());
    check_goes_on(world);
  }
  for (const Rank& rank : memory) CHECK(rank.untouched());
}

void point_to_point(const std::string& transport) {
  World world({.size = 3, .transport = transport});
  std::vector<float> data(2000000, 1.0f), output(2000000, -7.0f);
  for (const std::uint64_t sent : {std::uint64_t{10}, std::uint64_t{2000000}}) {
    for (const char* spec : {"", sent == 10 ? "int8:ef=1" : "int4:ef=1"}) {
      const std::uint64_t received = sent == 10 ? 1000000 : 20;
      const WorkRef recv =
          world[2].recv({nullptr, output.data(), received, "k"}, DType::kF32, 0, world.codec(2, spec), 0);
      const WorkRef send =
          world[0].send({data.data(), nullptr, sent, "k"}, DType::kF32, 2, world.codec(0, spec), 0);
      for (const WorkRef& work : {recv, send}) {
        CHECK(work->wait_until(Clock::now() + std::chrono::seconds(30)) && work->code() == Code::kMismatch,
              "%s", work->text().c_str());
      }
      CHECK(recv->text() == send->text());
      CHECK(recv->text().find("ranks disagree on count: rank 0: send(to 2, float32[" + std::to_string(sent) +
                              "]") == 0,
            "%s", recv->text().c_str());
      if (*spec != '\0') {
        const comm::Codec codec = world.codec(0, spec);
        auto* state = codec->acquire("k", 2, &world, collective::StatefulCodec::next_call_id(), sent, 1, sent);
        CHECK(state->residual == std::vector<float>(sent, 0.0f));
        codec->release(state, true);
      }
    }
    // Both lanes are clean, both ways.
    std::vector<float> got(500000);
    for (const auto& [from, to] : {std::pair{0, 2}, std::pair{2, 0}}) {
      std::fill(got.begin(), got.end(), 0.0f);
      const WorkRef r = world[to].recv({nullptr, got.data(), got.size(), {}}, DType::kF32, from, nullptr, 0);
      const WorkRef s = world[from].send({data.data(), nullptr, got.size(), {}}, DType::kF32, to, nullptr, 0);
      for (const WorkRef& work : {r, s}) {
        CHECK(work->wait_until(Clock::now() + std::chrono::seconds(30)) && work->code() == Code::kOk, "%s",
              work->text().c_str());
      }
      CHECK(got == std::vector<float>(got.size(), 1.0f));
    }
  }
  CHECK(output == std::vector<float>(output.size(), -7.0f));
  check_goes_on(world);
}

// Counters and residuals are as if the call had not been.
void state_is_kept() {
  World world({.size = 2});
  const std::string spec = "int4:rounding=stochastic:ef=1";
  std::vector<std::vector<float>> data(2, std::vector<float>(200000));
  for (std::size_t i = 0; i < data[0].size(); ++i) data[0][i] = data[1][i] = static_cast<float>(i % 97);
  const auto call = [&](int r, std::uint64_t count) {
    float* memory = data[static_cast<std::size_t>(r)].data();
    const TensorView tensor{memory, memory, count, "k"};
    return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(r, spec), 0);
  };
  world.all([&](int r) { return call(r, 200000); });
  const auto before = world.codec(0, spec)->save();
  const auto other = world.codec(1, spec)->save();
  world.all([&](int r) { return r == 0 ? call(0, 200000) : world[1].barrier(0); }, Code::kMismatch);
  CHECK(world.codec(0, spec)->save() == before && world.codec(1, spec)->save() == other);
}

}  // namespace

int main() {
  for (const int ranks : {2, 3}) matrix({.size = ranks});
  matrix({.size = 4, .slot_bytes = std::size_t{128} << 10});
  matrix({.size = 3, .transport = "tcp", .slot_bytes = std::size_t{128} << 10});
  all_to_all_counts();
  point_to_point("local");
  point_to_point("tcp");
  state_is_kept();
  return check::report("engine_mismatch");
}
