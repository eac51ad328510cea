// What ends a call other than success: aborts, deadlines, lost peers, NaNs under nonfinite=raise, wrong
// arguments; and closing, forking, queueing from many threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

constexpr std::uint64_t kCount = 300000;

struct Tensors {
  explicit Tensors(int ranks, float value = 1.0f)
      : data(static_cast<std::size_t>(ranks), std::vector<float>(kCount, value)) {}
  float* operator[](int rank) { return data[static_cast<std::size_t>(rank)].data(); }
  std::vector<std::vector<float>> data;
};

WorkRef sum(World& world, int rank, float* memory, std::uint64_t count = kCount,
            const char* spec = "bf16:min_bytes=0", double timeout_s = 0) {
  const TensorView tensor{memory, memory, count, {}};
  return world[rank].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(rank, spec),
                                timeout_s);
}

void wait(const WorkRef& work) { CHECK(work->wait_until(Clock::now() + std::chrono::seconds(60)), "it hangs"); }

void expect_closed(World& world, int rank) {
  float value = 0;
  CHECK_THROWS(sum(world, rank, &value, 1, ""), Code::kClosed);
  CHECK_THROWS(world[rank].barrier(0), Code::kClosed);
  CHECK_THROWS(world[rank].codec("int8"), Code::kClosed);
}

// Rank 1 never comes; rank 0's queued calls, of all lanes, fail alike when rank 2 aborts.
void abort_from_another_thread(const std::string& transport) {
  World world({.size = 3, .transport = transport});
  Tensors tensors(3);
  float token = 0;
  std::vector<WorkRef> works;
  for (const int rank : {0, 2}) {
    for (int i = 0; i < 3; ++i)
      works.push_back(sum(world, rank, tensors[rank], kCount - static_cast<std::uint64_t>(i)));
  }
  works.push_back(world[0].recv({nullptr, &token, 1, {}}, DType::kF32, 1, nullptr, 0));
  works.push_back(world[0].send({&token, nullptr, 1, {}}, DType::kF32, 2, nullptr, 0));
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world[2].abort("a test says so");
  });
  for (const WorkRef& work : works) {
    wait(work);
    CHECK(work->code() == Code::kAborted && work->peer() == 2, "%d: %s", static_cast<int>(work->code()),
          work->text().c_str());
    CHECK(work->text().find("rank 2 aborted the communicator: a test says so") == 0, "%s",
          work->text().c_str());
  }
  aborter.join();
  expect_closed(world, 0);
  expect_closed(world, 2);
  world[0].abort("again");  // no effect
}

void deadlines(const std::string& transport) {
  World world({.size = 3, .transport = transport});
  Tensors tensors(3);
  const auto before = Clock::now();
  std::vector<WorkRef> works;
  works.push_back(sum(world, 0, tensors[0], kCount, "int8", 0.2));
  works.push_back(sum(world, 2, tensors[2], kCount, "int8", 0.2));
  for (const WorkRef& work : works) {
    CHECK(!work->wait_until(Clock::now()) || work->completed());
    wait(work);
    CHECK(work->code() == Code::kTimeout && work->peer() == 1, "%d: %s", static_cast<int>(work->code()),
          work->text().c_str());
    CHECK(work->text().find("rank 1") != std::string::npos &&
              work->text().find("all_reduce") != std::string::npos,
          "%s", work->text().c_str());
  }
  const double took = std::chrono::duration<double>(Clock::now() - before).count();
  CHECK(took > 0.19 && took < 5, "%g s", took);
  expect_closed(world, 0);
}

// A call's time runs from the call, also while it is queued behind another one.
void queued_too_late() {
  World world({.size = 2});
  Tensors tensors(2);
  const WorkRef first = sum(world, 0, tensors[0], kCount, "int8", 30);
  const WorkRef queued = world[0].barrier(0.05);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const WorkRef partner = sum(world, 1, tensors[1], kCount, "int8", 30);
  for (const WorkRef& work : {first, partner, queued}) wait(work);
  CHECK(first->code() == Code::kOk, "%s", first->text().c_str());
  CHECK(queued->code() == Code::kTimeout &&
            queued->text().find("earlier ones took too long") != std::string::npos,
        "%s", queued->text().c_str());
  expect_closed(world, 0);
}

void lost_peer(const std::string& transport) {
  auto world = std::make_unique<World>(WorldOptions{.size = 3, .transport = transport});
  Tensors tensors(3);
  std::vector<WorkRef> works = {sum(*world, 0, tensors[0]), sum(*world, 2, tensors[2])};
  (*world)[1].close();
  for (const WorkRef& work : works) {
    wait(work);
    CHECK(work->code() == Code::kPeerLost && work->peer() == 1, "%d: %s", static_cast<int>(work->code()),
          work->text().c_str());
  }
  expect_closed(*world, 0);
  expect_closed(*world, 1);
  world.reset();  // works outlive their communicators
  CHECK(works[0]->text().find("rank 1") != std::string::npos);
}

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
void many_threads() {
  World world({.size = 3});
  std::mutex order;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto count = static_cast<std::uint64_t>(10 + 5000 * t);
      for (int i = 0; i < 20; ++i) {
        std::vector<std::vector<float>> data(3, std::vector<float>(count, static_cast<float>(t + 1)));
        std::vector<WorkRef> works;
        {
          const std::lock_guard lock(order);
          for (int r = 0; r < 3; ++r) {
            works.push_back(sum(world, r, data[static_cast<std::size_t>(r)].data(), count, "bf16:min_bytes=0"));
          }
        }
        for (const WorkRef& work : works) {
          if (!work->wait_until(Clock::now() + std::chrono::seconds(60)) || work->code() != Code::kOk) ++wrong;
        }
        for (const auto& result : data) {
          for (const float value : result) wrong += value == static_cast<float>(3 * (t + 1)) ? 0 : 1;
        }
        (void)world[0].stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0, "%d", wrong.load());
  CHECK(world[0].stats().calls == 160);
}

// Several communicators at once, each with its own threads, sharing nothing.
void many_communicators() {
  std::vector<std::unique_ptr<World>> worlds;
  for (int i = 0; i < 4; ++i)
    worlds.push_back(
        std::make_unique<World>(WorldOptions{.size = 2, .transport = i % 2 == 0 ? "local" : "tcp"}));
  std::vector<Tensors> tensors(4, Tensors(2));
  std::vector<WorkRef> works;
  for (int i = 0; i < 4; ++i) {
    // Not the same order on both ranks: communicators don't wait for one another.
    for (const int k : {i, 3 - i}) {
      const int rank = k == i ? 0 : 1;
      works.push_back(
          sum(*worlds[static_cast<std::size_t>(k)], rank, tensors[static_cast<std::size_t>(k)][rank]));
    }
  }
  for (const WorkRef& work : works) {
    wait(work);
    CHECK(work->code() == Code::kOk, "%s", work->text().c_str());
  }
  for (const Tensors& all : tensors)
    CHECK(all.data[0] == std::vector<float>(kCount, 2.0f) && all.data[1] == all.data[0]);
}

// Completions come in the order of the calls.
void first_in_first_out() {
  World world({.size = 2});
  Tensors tensors(2);
  struct Note {
    std::atomic<int>* next;
    int number;
    std::atomic<bool> in_order{false};
  };
  std::atomic<int> next{0};
  std::vector<std::unique_ptr<Note>> notes;
  std::vector<WorkRef> works;
  for (int i = 0; i < 30; ++i) {
    const auto count = static_cast<std::uint64_t>(i % 3 == 0 ? kCount : 10);
    works.push_back(sum(world, 0, tensors[0], count));
    notes.push_back(std::unique_ptr<Note>(new Note{&next, i}));
    works.back()->on_complete({[](const comm::Completion& completion, Code) {
                                 auto& note = *static_cast<Note*>(completion.context);
                                 note.in_order = note.next->fetch_add(1) == note.number;
                               },
                               nullptr, notes.back().get()});
  }
  for (int i = 0; i < 30; ++i)
    works.push_back(sum(world, 1, tensors[1], static_cast<std::uint64_t>(i % 3 == 0 ? kCount : 10)));
  for (const WorkRef& work : works) wait(work);
  world[0].close();  // callbacks are over
  for (const auto& note : notes) CHECK(note->in_order, "call %d", note->number);
  bool called = false;
  works[0]->on_complete({[](const comm::Completion& completion, Code code) {
                           *static_cast<bool*>(completion.context) = code == Code::kOk;
                         },
                         nullptr, &called});
  CHECK(called);  // at once, it is complete
}

void closing() {
  World world({.size = 2});
  Tensors tensors(2);
  std::vector<WorkRef> works;
  for (int i = 0; i < 5; ++i)
    works.push_back(sum(world, 0, tensors[0], kCount - static_cast<std::uint64_t>(i)));
  std::thread closer([&] { world[0].close(); });  // waits for what is queued
  for (int i = 0; i < 5; ++i)
    works.push_back(sum(world, 1, tensors[1], kCount - static_cast<std::uint64_t>(i)));
  for (const WorkRef& work : works) {
    wait(work);
    CHECK(work->code() == Code::kOk, "%s", work->text().c_str());
  }
  closer.join();
  world[0].close();
  expect_closed(world, 0);
  world[0].abort("after close");
  // With work that nobody answers, close() gives up at the communicator's timeout.
  World stuck({.size = 2, .timeout_s = 0.2});
  const WorkRef work = stuck[0].barrier(100);
  stuck[0].close();
  wait(work);
  CHECK(work->code() == Code::kTimeout, "%s", work->text().c_str());
}

void in_a_forked_child(const std::string& transport) {
  World world({.size = 2, .transport = transport});
  Tensors tensors(2);
  world.all([&](int r) { return sum(world, r, tensors[r]); });
  const WorkRef held = world[0].barrier(0);
  const pid_t child = fork();
  if (child == 0) {
    bool fine = world[0].forked();
    try {
      world[0].barrier(0);
      fine = false;
    } catch (const Error& error) {
      fine = fine && error.code() == Code::kClosed;
    }
    world[0].close();  // returns; nothing is joined
    fine = fine && held->forked();
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const WorkRef other = world[1].barrier(0);
  wait(held);
  CHECK(held->code() == Code::kOk);
  world.all([&](int r) { return sum(world, r, tensors[r]); });
}

template <typename Call>
void invalid(Call&& call, const char* expected) {
  try {
    call();
    CHECK(false, "%s: not refused", expected);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalid && std::string(error.what()).find(expected) != std::string::npos,
          "%s: %s", expected, error.what());
  }
}

void wrong_arguments() {
  World world({.size = 2});
  Communicator& comm = world[0];
  std::vector<float> memory(1000);
  float* data = memory.data();
  const auto reduce = [&](TensorView tensor, DType dtype = DType::kF32, const char* spec = "",
                          double timeout = 0) {
    comm.all_reduce(&tensor, 1, dtype, collective::Op::kSum, world.codec(0, spec), timeout);
  };
  invalid([&] { reduce({nullptr, data, 5, {}}); }, "tensors[0].input: NULL");
  invalid([&] { reduce({data, nullptr, 5, {}}); }, "tensors[0].output: NULL");
  invalid([&] { reduce({data, data + 1, 5, {}}); }, "overlap");
  invalid([&] { reduce({data + 4, data, 5, {}}); }, "overlap");
  invalid([&] { reduce({reinterpret_cast<char*>(data) + 1, reinterpret_cast<char*>(data) + 1, 5, {}}); },
          "aligned");
  invalid([&] { reduce({data, data, ~std::uint64_t{0} / 2, {}}); }, "more than memory");
  invalid([&] { reduce({data, data, 5, {}}, DType::kI32); }, "int32 cannot be summed");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF64, "int8"); }, "float64 cannot be encoded by codec int8");
  invalid([&] { reduce({data, data, 5, {}}, static_cast<DType>(99)); }, "99");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF32, "int8:ef=1"); }, "needs a key");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF32, "", -1); }, "timeout_s");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF32, "", NAN); }, "timeout_s");
  const TensorView twice[] = {{data, data, 5, "k"}, {data + 10, data + 10, 5, "k"}};
  invalid([&] { comm.all_reduce(twice, 2, DType::kF32, collective::Op::kSum, world.codec(0, "int8:ef=1"), 0); },
          "'k' names two tensors");
  invalid([&] { comm.broadcast({data, data, 5, {}}, DType::kF32, 2, nullptr, 0); }, "root: 2");
  invalid([&] { comm.send({data, nullptr, 5, {}}, DType::kF32, 0, nullptr, 0); }, "this rank itself");
  invalid([&] { comm.recv({nullptr, data, 5, {}}, DType::kF32, -1, nullptr, 0); }, "peer: -1");
  invalid([&] { comm.reduce_scatter({data, data + 6, 5, {}}, DType::kF32, collective::Op::kSum, nullptr, 0); },
          "overlap");
  invalid([&] { world[1].reduce_scatter({data, data, 5, {}}, DType::kF32, collective::Op::kSum, nullptr, 0); },
          "overlap");
  invalid([&] { comm.all_gather({data + 3, data, 5, {}}, DType::kF32, nullptr, 0); }, "overlap");
  const std::uint64_t sends[] = {3, 4}, receives[] = {2, 4};
  invalid([&] { comm.all_to_all({data, data + 500, 0, {}}, sends, receives, DType::kF32, nullptr, 0); },
          "recv_counts[0]");
  invalid([&] { comm.all_to_all({data, data, 0, {}}, sends, sends, DType::kF32, nullptr, 0); },
          "must not be the input");
  CHECK_THROWS(comm.codec("int9"), Code::kCodec);
  invalid([&] { comm.link_probe(1, true, comm::LinkPattern::kPingPong, 0, 1, nullptr); }, "bytes: 0");
  // A key's residual is for one size.
  std::vector<std::vector<float>> both(2, std::vector<float>(20));
  world.all([&](int r) {
    float* memory_of = both[static_cast<std::size_t>(r)].data();
    const TensorView tensor{memory_of, memory_of, 20, "size"};
    return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(r, "int8:ef=1"), 0);
  });
  invalid([&] { reduce({data, data, 21, "size"}, DType::kF32, "int8:ef=1"); }, "residual of 20 elements");
  // Nothing of this was sent.
  world.all([&](int r) { return world[r].barrier(0); });
}

void link_probe() {
  World world({.size = 2, .transport = "tcp"});
  for (const auto pattern :
       {comm::LinkPattern::kPingPong, comm::LinkPattern::kOneWay, comm::LinkPattern::kBidirectional}) {
    for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{9} << 20}) {
      double seconds[5] = {};
      std::thread other([&] { world[1].link_probe(0, false, pattern, bytes, 5, nullptr); });
      world[0].link_probe(1, true, pattern, bytes, 5, seconds);
      other.join();
      for (const double s : seconds) CHECK(s > 0 && s < 10);
    }
  }
}

}  // namespace

int main() {
  for (const char* transport : {"local", "tcp"}) {
    abort_from_another_thread(transport);
    deadlines(transport);
    lost_peer(transport);
    in_a_forked_child(transport);
  }
  queued_too_late();
  for (int ranks = 1; ranks <= 4; ++ranks) nonfinite_raise(ranks, "local");
  nonfinite_raise(2, "tcp");
  nonfinite_is_reported();
  many_threads();
  many_communicators();
  first_in_first_out();
  closing();
  wrong_arguments();
  link_probe();
  return check::report("engine_faults");
}
