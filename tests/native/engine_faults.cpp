// What ends a call other than success: aborts, deadlines, lost peers; and closing, forking, queueing from many
// threads.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "engine_calls.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

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

// Nothing was before it: then no earlier call is to blame.
void no_time_at_all() {
  World world({.size = 2});
  const WorkRef work = world[0].barrier(1e-9);
  wait(work);
  CHECK(work->code() == Code::kTimeout && work->text().find("earlier") == std::string::npos, "%s",
        work->text().c_str());
}

// A program's signals are for its own threads.
void signals_are_blocked() {
  World world({.size = 2});
  world.all([&](int r) { return world[r].barrier(0); });
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "status");
    std::string name;
    unsigned long long blocked = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("Name:", 0) == 0) name = line;
      if (line.rfind("SigBlk:", 0) == 0) blocked = std::strtoull(line.c_str() + 7, nullptr, 16);
    }
    if (name.find("gcomm-coll") == std::string::npos) continue;
    ++threads;
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) CHECK((blocked >> (number - 1) & 1) != 0);
    CHECK((blocked >> (SIGSEGV - 1) & 1) == 0, "a crash could not be reported");
  }
  CHECK(threads == 2, "%d", threads);
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

}  // namespace

int main() {
  for (const char* transport : {"local", "tcp"}) {
    abort_from_another_thread(transport);
    deadlines(transport);
    lost_peer(transport);
    in_a_forked_child(transport);
  }
  queued_too_late();
  no_time_at_all();
  signals_are_blocked();
  many_threads();
  many_communicators();
  first_in_first_out();
  closing();
  return check::report("engine_faults");
}
