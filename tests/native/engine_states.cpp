// What a call that did not take place leaves behind in a codec: nothing. And memory that is only read.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

constexpr std::uint64_t kCount = 20000;
const std::string kSpec = "int4:ef=1:min_bytes=0";

struct Ranks {
  explicit Ranks(int n, std::uint64_t count)
      : data(static_cast<std::size_t>(n), std::vector<float>(count, 1.0f)) {}
  float* operator[](int rank) { return data[static_cast<std::size_t>(rank)].data(); }
  std::vector<std::vector<float>> data;
};

WorkRef sum(World& world, int rank, float* memory, std::uint64_t count, std::string_view key,
            const std::string& spec = kSpec) {
  const TensorView tensor{memory, memory, count, key};
  return world[rank].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(rank, spec), 0);
}

std::string state_of(World& world, int rank, const std::string& spec) {
  const auto bytes = world.codec(rank, spec)->save();
  return {bytes.begin(), bytes.end()};
}

// Ranks that disagree on a count, then don't: the first call must not have fixed the residual's size.
void after_a_mismatch(const std::string& transport) {
  World world({.size = 2, .transport = transport});
  const std::string empty = state_of(world, 0, kSpec);
  Ranks ranks(2, 2 * kCount);
  const auto wrong = [&](int r) { return sum(world, r, ranks[r], r == 0 ? 2 * kCount : kCount, "w"); };
  world.all(wrong, Code::kMismatch);
  for (int r = 0; r < 2; ++r) CHECK(state_of(world, r, kSpec) == empty);
  world.all([&](int r) { return sum(world, r, ranks[r], 2 * kCount, "w"); });
  // From now on the key has its size, and another disagreement leaves its residual and counter alone.
  const std::string used = state_of(world, 1, kSpec);
  CHECK(used.size() > empty.size() + 2 * kCount * sizeof(float));
  world.all([&](int r) { return sum(world, r, ranks[r], 2 * kCount, r == 0 ? "w" : "v"); }, Code::kMismatch);
  CHECK(state_of(world, 1, kSpec) == used);
  // Point to point, where the sender alone has state.
  const auto move = [&](int r, std::uint64_t count) {
    const TensorView tensor{ranks[r], ranks[r], count, "p"};
    return r == 0 ? world[0].send(tensor, DType::kF32, 1, world.codec(0, kSpec), 0)
                  : world[1].recv(tensor, DType::kF32, 0, world.codec(1, kSpec), 0);
  };
  world.all([&](int r) { return move(r, kCount + static_cast<std::uint64_t>(r)); }, Code::kMismatch);
  world.all([&](int r) { return move(r, kCount + 1); });
}

// Calls of the same key were queued behind the one that fails: the state stays for them.
void with_calls_behind_it() {
  World world({.size = 2});
  Ranks first(2, kCount), second(2, kCount);
  std::vector<WorkRef> works;
  for (int r = 0; r < 2; ++r) {
    const TensorView tensor{first[r], first[r], kCount, "w"};
    const auto op = r == 0 ? collective::Op::kSum : collective::Op::kAvg;
    works.push_back(world[r].all_reduce(&tensor, 1, DType::kF32, op, world.codec(r, kSpec), 0));
    works.push_back(sum(world, r, second[r], kCount, "w"));
  }
  for (const WorkRef& work : works) CHECK(work->wait_until(Clock::now() + std::chrono::seconds(60)));
  for (std::size_t i = 0; i < works.size(); ++i) {
    CHECK(works[i]->code() == (i % 2 == 0 ? Code::kMismatch : Code::kOk), "%s", works[i]->text().c_str());
  }
  CHECK_THROWS(sum(world, 0, first[0], kCount - 1, "w"), Code::kInvalid);
}

void after_a_refused_nan() {
  World world({.size = 2});
  const std::string spec = kSpec + ":nonfinite=raise";
  Ranks ranks(2, kCount);
  ranks[1][7] = std::numeric_limits<float>::quiet_NaN();
  world.all([&](int r) { return sum(world, r, ranks[r], kCount, "w", spec); }, Code::kNonFinite);
  world.all([&](int r) { return sum(world, r, ranks[r], 5, "w", spec); });
}

// A later key of the call is refused: the ones before it were for nothing.
void after_a_refused_key() {
  World world({.size = 2});
  const std::string empty = state_of(world, 0, kSpec);
  std::vector<float> memory(100, 1.0f);
  const auto refused = [&](std::string_view second) {
    const TensorView twice[] = {{memory.data(), memory.data(), 40, "a"},
                                {memory.data() + 50, memory.data() + 50, 30, second}};
    return world[0].all_reduce(twice, 2, DType::kF32, collective::Op::kSum, world.codec(0, kSpec), 0);
  };
  CHECK_THROWS(refused("a"), Code::kInvalid);
  CHECK_THROWS(refused(""), Code::kInvalid);
  CHECK(state_of(world, 0, kSpec) == empty);
  Ranks ranks(2, 90);
  world.all([&](int r) { return sum(world, r, ranks[r], 90, "a"); });
}

// A root whose values travel as they are may have them in memory that cannot be written.
void read_only_root(const std::string& spec, std::uint64_t count, bool written) {
  World world({.size = 2, .slot_bytes = std::size_t{128} << 10});
  const std::size_t bytes = count * sizeof(float);
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* values = static_cast<float*>(page);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 1000);
  values[3] = INFINITY;
  if (!written) ::mprotect(page, bytes, PROT_READ);
  std::vector<float> got(count, -1.0f);
  const auto works = world.all([&](int r) {
    void* data = r == 1 ? page : got.data();
    return world[r].broadcast({data, data, count, {}}, DType::kF32, 1, world.codec(r, spec), 0);
  });
  CHECK(std::memcmp(got.data(), page, bytes) == 0, "%s", spec.c_str());
  CHECK(got[3] == (written ? 0.0f : INFINITY), "%s", spec.c_str());
  for (const WorkRef& work : works) CHECK(work->stats().nonfinite == written, "%s", spec.c_str());
  ::munmap(page, bytes);
}

}  // namespace

int main() {
  after_a_mismatch("local");
  after_a_mismatch("tcp");
  with_calls_behind_it();
  after_a_refused_nan();
  after_a_refused_key();
  read_only_root("", 1000, false);
  read_only_root("", 300000, false);  // several chunks
  read_only_root("int8", 100, false);
  read_only_root("int8:nonfinite=zero", 100, true);
  return check::report("engine_states");
}
