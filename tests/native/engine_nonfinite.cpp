// NaN and Inf in what ranks give: refused on all of them (nonfinite=raise), or reported.
#include <cmath>
#include <cstring>

#include "engine_calls.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

void nonfinite_raise(int ranks, const std::string& transport) {
  World world({.size = ranks, .transport = transport, .slot_bytes = std::size_t{128} << 10});
  for (const char* spec : {"int8:nonfinite=raise", "int4:nonfinite=raise:min_bytes=0:rounding=stochastic:ef=1",
                           "fp32:nonfinite=raise:min_bytes=0", "fp32:nonfinite=raise:min_bytes=100000000"}) {
    for (const std::uint64_t count : {std::uint64_t{100}, kCount}) {
      for (const std::uint64_t at : {std::uint64_t{0}, count - 1}) {
        Tensors tensors(ranks);
        const int bad = ranks - 1;
        tensors[bad][at] = at == 0 ? NAN : -INFINITY;
        const auto before = tensors.data;
        const std::string key = "k" + std::to_string(count);
        const auto works = world.all(
            [&](int r) {
              const TensorView tensor{tensors[r], tensors[r], count, key};
              return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(r, spec),
                                         0);
            },
            Code::kNonFinite);
        for (const WorkRef& work : works) {
          CHECK(work->peer() == bad && work->text() == works[0]->text() && work->stats().nonfinite, "%s",
                work->text().c_str());
        }
        for (int r = 0; r < ranks; ++r) {
          const auto i = static_cast<std::size_t>(r);
          CHECK(std::memcmp(tensors.data[i].data(), before[i].data(), kCount * 4) == 0, "a tensor was written");
        }
        tensors[bad][at] = 1.0f;
        world.all([&](int r) {
          const TensorView tensor{tensors[r], tensors[r], count, key};
          return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(r, spec), 0);
        });
      }
    }
  }
  // Verbs that move: only the one who sends knows.
  Tensors tensors(ranks), outputs(ranks, -7.0f);
  tensors[0][5] = NAN;
  const std::string spec = "int8:nonfinite=raise";
  std::vector<std::vector<float>> wide(static_cast<std::size_t>(ranks),
                                       std::vector<float>(kCount * static_cast<std::uint64_t>(ranks), -7.0f));
  world.all(
      [&](int r) {
        return world[r].all_gather({tensors[r], wide[static_cast<std::size_t>(r)].data(), kCount, {}},
                                   DType::kF32, world.codec(r, spec), 0);
      },
      Code::kNonFinite);
  world.all(
      [&](int r) {
        float* data = r == 0 ? tensors[0] : outputs[r];
        return world[r].broadcast({data, data, kCount, {}}, DType::kF32, 0, world.codec(r, spec), 0);
      },
      Code::kNonFinite);
  world.all(
      [&](int r) {
        return world[r].reduce_scatter({tensors[r], outputs[r], 1000, {}}, DType::kF32, collective::Op::kSum,
                                       world.codec(r, spec), 0);
      },
      Code::kNonFinite);
  if (ranks > 1) {
    for (int i = 0; i < 2; ++i) {
      const WorkRef recv =
          world[1].recv({nullptr, outputs[1], kCount, {}}, DType::kF32, 0, world.codec(1, spec), 0);
      const WorkRef send =
          world[0].send({tensors[0], nullptr, kCount, {}}, DType::kF32, 1, world.codec(0, spec), 0);
      for (const WorkRef& work : {recv, send}) {
        wait(work);
        CHECK(work->code() == Code::kNonFinite && work->peer() == 0, "%s", work->text().c_str());
      }
    }
  }
  for (const auto& result : outputs.data) CHECK(result == std::vector<float>(kCount, -7.0f));
  for (const auto& result : wide) CHECK(result == std::vector<float>(result.size(), -7.0f));
  tensors[0][5] = 1.0f;
  if (ranks > 1) {
    const WorkRef recv =
        world[1].recv({nullptr, outputs[1], kCount, {}}, DType::kF32, 0, world.codec(1, spec), 0);
    const WorkRef send =
        world[0].send({tensors[0], nullptr, kCount, {}}, DType::kF32, 1, world.codec(0, spec), 0);
    for (const WorkRef& work : {recv, send}) {
      wait(work);
      CHECK(work->code() == Code::kOk, "%s", work->text().c_str());
    }
  }
}

// stats().nonfinite under the other policies: every rank of an all_reduce knows.
void nonfinite_is_reported() {
  World world({.size = 3});
  for (const std::uint64_t count : {std::uint64_t{100}, kCount}) {
    Tensors tensors(3);
    tensors[1][count / 2] = INFINITY;
    for (const bool bad : {true, false}) {
      for (const WorkRef& work : world.all([&](int r) { return sum(world, r, tensors[r], count, "int8"); })) {
        CHECK(work->stats().nonfinite == bad, "%llu", static_cast<unsigned long long>(count));
      }
      tensors = Tensors(3);
    }
  }
}

// Each thread queues calls of its own on all ranks in turn, under a lock that gives them the same order
// everywhere.
}  // namespace

int main() {
  for (int ranks = 1; ranks <= 4; ++ranks) nonfinite_raise(ranks, "local");
  nonfinite_raise(2, "tcp");
  nonfinite_is_reported();
  return check::report("engine_nonfinite");
}
