// What repeated calls cost: no allocation, workspaces within their bound, memory flat over ten thousand calls.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>

#include "allocations.h"
#include "comm/env.h"
#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

constexpr std::uint64_t kCount = 400000;

std::vector<float> ramps() {
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    values[i] = 0.5f + static_cast<float>(i % 37) * static_cast<float>(i % 101) * 1e-3f;
  return values;
}

struct Memory {
  std::vector<float> input = ramps();
  std::vector<float> output = std::vector<float>(4 * kCount);
};

// One call of a kind on one rank, with nothing of its own on the heap.
struct Kind {
  const char* name;
  WorkRef (*start)(Communicator& comm, Memory& memory, const comm::Codec& codec);
  const char* spec;
};

WorkRef reduce(Communicator& comm, Memory& m, const comm::Codec& codec) {
  const TensorView tensor{m.input.data(), m.output.data(), kCount,
                          "a key that is longer than any short string"};
  return comm.all_reduce(&tensor, 1, DType::kF32, collective::Op::kAvg, codec, 0);
}
WorkRef matrix(Communicator& comm, Memory& m, const comm::Codec& codec) {
  const TensorView tensor{m.input.data(), m.output.data(), 80000, "a matrix's weight", 100, 800};
  return comm.all_reduce(&tensor, 1, DType::kF32, collective::Op::kAvg, codec, 0);
}
WorkRef small(Communicator& comm, Memory& m, const comm::Codec& codec) {
  const TensorView tensor{m.input.data(), m.output.data(), 1024, {}};
  return comm.all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, codec, 0);
}
WorkRef coalesced(Communicator& comm, Memory& m, const comm::Codec& codec) {
  const TensorView tensors[] = {
      {m.input.data(), m.output.data(), 200000, "first"},
      {m.input.data() + 200000, m.output.data() + 200000, 100, "second"},
      {m.input.data() + 210000, m.output.data() + 210000, 150000, "third, with a long name of its own"}};
  return comm.all_reduce(tensors, 3, DType::kF32, collective::Op::kSum, codec, 0);
}
WorkRef scatter(Communicator& comm, Memory& m, const comm::Codec& codec) {
  return comm.reduce_scatter(
      {m.input.data(), m.output.data(), kCount / static_cast<std::uint64_t>(comm.size()), {}}, DType::kF32,
      collective::Op::kSum, codec, 0);
}
WorkRef gather(Communicator& comm, Memory& m, const comm::Codec& codec) {
  return comm.all_gather({m.input.data(), m.output.data(), kCount, {}}, DType::kF32, codec, 0);
}
WorkRef exchange(Communicator& comm, Memory& m, const comm::Codec& codec) {
  const std::uint64_t counts[4] = {50000, 50000, 50000, 50000};
  return comm.all_to_all({m.input.data(), m.output.data(), 0, {}}, counts, counts, DType::kF32, codec, 0);
}
WorkRef cast(Communicator& comm, Memory& m, const comm::Codec& codec) {
  return comm.broadcast({m.input.data(), m.input.data(), kCount, {}}, DType::kF32, 0, codec, 0);
}
WorkRef pass(Communicator& comm, Memory& m, const comm::Codec& codec) {
  if (comm.size() == 1) return {};
  if (comm.rank() == 0) return comm.send({m.input.data(), nullptr, kCount, "sent"}, DType::kF32, 1, codec, 0);
  if (comm.rank() == 1) return comm.recv({nullptr, m.output.data(), kCount, "sent"}, DType::kF32, 0, codec, 0);
  return {};
}
WorkRef meet(Communicator& comm, Memory&, const comm::Codec&) { return comm.barrier(0); }

const Kind kKinds[] = {
    {"all_reduce int8", reduce, "int8"},
    {"all_reduce fp32, direct", reduce, "fp32:min_bytes=0"},
    {"all_reduce with state", reduce, "int4:rounding=stochastic:ef=1"},
    {"all_reduce hadamard", reduce, "hadamard+nvfp4"},
    {"all_reduce small", small, "int8"},
    {"all_reduce exact", reduce, ""},
    {"coalesced", coalesced, "int8"},
    {"coalesced with state", coalesced, "int4:ef=1"},
    {"reduce_scatter", scatter, "int8"},
    {"all_gather", gather, "int8"},
    {"all_gather exact", gather, ""},
    {"all_to_all", exchange, "int8"},
    {"broadcast", cast, ""},
    {"send and recv", pass, "int8"},
    {"barrier", meet, ""},
    // Between refreshes, from the second call of a key on.
    {"gift scale", matrix, "gift+int8:mode=scale:rank=8:refresh=1000:min_bytes=0"},
    {"gift split", matrix, "gift+int4:mode=split:rank=8:refresh=1000:ef=1:min_bytes=0"},
    {"gift rows", matrix, "gift+int4:mode=rows:rank=8:refresh=1000:ef=1:min_bytes=0"},
    {"gift factored", matrix, "gift+int8:geometry=factored:refresh=1000:min_bytes=0"},
    // A refresh in every call.
    {"gift factored, refreshed", matrix, "gift+int8:geometry=factored:refresh=1:min_bytes=0"},
};

void no_allocations(const WorldOptions& options) {
  World world(options);
  std::vector<Memory> memory(static_cast<std::size_t>(options.size));
  std::vector<comm::Codec> codecs(memory.size());
  std::vector<WorkRef> works(memory.size());
  for (const Kind& kind : kKinds) {
    for (int r = 0; r < options.size; ++r) codecs[static_cast<std::size_t>(r)] = world.codec(r, kind.spec);
    constexpr int kWarm = 6, kCounted = 4;
    for (int round = 0; round < kWarm + kCounted; ++round) {
      if (round == kWarm) {
        allocations::count = 0;
        allocations::counting = true;
      }
      for (int r = 0; r < options.size; ++r) {
        const auto i = static_cast<std::size_t>(r);
        works[i] = kind.start(world[r], memory[i], codecs[i]);
      }
      for (const WorkRef& work : works) {
        if (work) work->wait_until(Deadline::max());
      }
    }
    allocations::counting = false;
    for (const WorkRef& work : works) CHECK(!work || work->code() == Code::kOk, "%s", work->text().c_str());
    CHECK(allocations::count == 0, "%s over %s, %d ranks: %d allocations", kind.name, options.transport.c_str(),
          options.size, allocations::count.load());
  }
}

void workspace_bound() {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::size_t most : {std::size_t{1} << 20, std::size_t{4} << 20}) {
      for (const std::uint64_t count :
           {std::uint64_t{10}, std::uint64_t{100000}, std::uint64_t{1000000}, std::uint64_t{4000000}}) {
        for (const char* spec : {"int4:min_bytes=0", "fp32:min_bytes=0", "fp32:min_bytes=100000000"}) {
          World world(
              {.size = ranks, .slot_bytes = comm::default_slot_bytes(ranks, most), .isa = codec::best_isa()});
          std::vector<std::vector<float>> data(static_cast<std::size_t>(ranks),
                                               std::vector<float>(count, 1.0f));
          for (int call = 0; call < 2; ++call) {
            world.all([&](int r) {
              float* memory = data[static_cast<std::size_t>(r)].data();
              const TensorView tensor{memory, memory, count, {}};
              return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(r, spec),
                                         0);
            });
          }
          const std::uint64_t encoded = world.codec(0, spec)->block().max_encoded_bytes(count);
          for (int r = 0; r < ranks; ++r) {
            const std::uint64_t workspace = world[r].stats().workspace_bytes;
            CHECK(workspace <= 2 * encoded + (std::uint64_t{16} << 20),
                  "%llu bytes for %llu encoded, %d ranks, %s", static_cast<unsigned long long>(workspace),
                  static_cast<unsigned long long>(encoded), ranks, spec);
          }
        }
      }
    }
  }
}

long resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(file);
  return resident * 4096;
}

void ten_thousand_calls() {
  World world({.size = 2, .isa = codec::best_isa()});
  std::vector<Memory> memory(2);
  const comm::Codec codecs[] = {world.codec(0, "int4:min_bytes=0"), world.codec(1, "int4:min_bytes=0")};
  long before = 0;
  std::uint64_t workspace = 0;
  for (int call = 0; call < 10000; ++call) {
    WorkRef works[2];
    for (int r = 0; r < 2; ++r) {
      Memory& m = memory[static_cast<std::size_t>(r)];
      const TensorView tensor{
          m.input.data(), m.output.data(), static_cast<std::uint64_t>(1 + 97 * (call % 50)), {}};
      works[r] = world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, codecs[r], 0);
    }
    for (const WorkRef& work : works) {
      work->wait_until(Deadline::max());
      if (work->code() != Code::kOk) CHECK(false, "%s", work->text().c_str());
    }
    if (call == 1000) {
      before = resident_bytes();
      workspace = world[0].stats().workspace_bytes;
    }
  }
  CHECK(world[0].stats().workspace_bytes == workspace && world[0].stats().calls == 10000);
  CHECK(resident_bytes() - before < (1 << 20), "%ld bytes more", resident_bytes() - before);
}

}  // namespace

int main() {
#if COUNTS_ALLOCATIONS
  allocations::counting = true;
  void* volatile first = std::malloc(10);
  std::free(first);
  int* volatile second = new int(3);
  delete second;
  allocations::counting = false;
  CHECK(allocations::count == 2, "the counter is not in the way: %d", allocations::count.load());
#endif
  for (const int ranks : {1, 2, 4}) no_allocations({.size = ranks});
  no_allocations({.size = 3, .transport = "tcp", .slot_bytes = std::size_t{128} << 10});
  workspace_bound();
  ten_thousand_calls();
  return check::report("engine_steady");
}
