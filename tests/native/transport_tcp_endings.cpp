// How real processes leave: closing, exiting without a word, forking; and their signals.
#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "transport/fork.h"
#include "transport_processes.h"

namespace {

using namespace harness;

// Everything posted before close() arrives, though the process is gone and was sent bytes that it never read.
void test_close_then_exit() {
  constexpr int kMessages = 8;
  Processes ranks(2, [&](Transport& transport, Report& report) {
    Processes::say_ready();
    if (transport.rank() == 1) {
      std::vector<std::vector<unsigned char>> out;
      for (int i = 0; i < kMessages; ++i) {
        out.push_back(pattern(1, 0, i, kSlot));
        post_one(transport, send_op(0, out.back().data(), kSlot));
      }
      post_one(transport, send_op(0, out[0].data(), 77, Lane::kAck));
      transport.close();
      ::_exit(0);
    }
    std::vector<unsigned char> unread(200000), in(kSlot);
    const Ticket sent = post_one(transport, send_op(1, unread.data(), unread.size(), Lane::kP2p));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (int i = 0; i < kMessages; ++i) {
      std::fill(in.begin(), in.end(), static_cast<unsigned char>(0));
      run_one(transport, recv_op(1, in.data(), kSlot));
      if (in != pattern(1, 0, i, kSlot))
        throw Error(Code::kInternal, "message " + std::to_string(i) + " is wrong");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // now the other process is gone
    (void)failure_of([&] { wait_one(transport, sent); });
    if (run_one(transport, recv_op(1, in.data(), kSlot, Lane::kAck)) != 77) {
      throw Error(Code::kInternal, "the last message is wrong");
    }
    const auto error = failure_of([&] { run_one(transport, recv_op(1, in.data(), 1)); });
    if (!error || std::string(error->what()) != "rank 1 closed its communicator") {
      throw Error(Code::kInternal, error ? error->what() : "no failure after a goodbye");
    }
    report.peer = error->peer();
  });
  ranks.wait_ready();
  const Report report = ranks.report(0);
  CHECK(report.code == -1 && report.peer == 1, "%s", report.text);
}

// exit() runs destructors of static objects while the I/O thread is on, and perhaps a wait.
void test_exit_without_close() {
  for (const bool with_wait : {false, true}) {
    Processes ranks(2, [&](Transport& transport, Report&) {
      static char byte = 0;
      Processes::say_ready();
      if (transport.rank() == 1) run_one(transport, recv_op(0, &byte, 1), 30);
      if (with_wait) {
        std::thread([&] { (void)failure_of([&] { run_one(transport, recv_op(1, &byte, 1), 30); }); }).detach();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      std::exit(0);
    });
    ranks.wait_ready();
    CHECK(ranks.status(0) == 0, "with_wait %d", with_wait);
    check_lost(ranks.report(1), 0, "exit without close");
  }
}

// Code of what a child's use of its parent's communicator throws.
bool is_closed_here(const std::function<void()>& call) {
  const auto error = failure_of(call);
  return error && error->code() == Code::kClosed &&
         std::string(error->what()).find("fork") != std::string::npos;
}

void test_fork() {
  Processes ranks(2, [&](Transport& transport, Report& report) {
    int out = transport.rank(), in = -1;
    const int peer = 1 - transport.rank();
    const Ticket pending = post_one(transport, recv_op(peer, &in, sizeof in, Lane::kP2p));
    const auto exchange = [&] {
      const TransportOp ops[2] = {recv_op(peer, &in, sizeof in), send_op(peer, &out, sizeof out)};
      Ticket tickets[2];
      transport.post(ops, 2, tickets);
      transport.wait_all(tickets, 2, nullptr, in_seconds(20));
      if (in != peer) throw Error(Code::kInternal, "wrong bytes");
    };
    exchange();
    if (transport.rank() == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        char byte = 0;
        bool good = is_closed_here([&] { post_one(transport, send_op(1, &byte, 1)); });
        good = good && is_closed_here([&] { wait_one(transport, pending); });
        good = good && is_closed_here([&] { (void)transport.ready(&pending, 1); });
        transport.abort(Error(Code::kAborted, "from a child", 0));
        transport.close();
        // What a child's own descriptors are must not be closed by the parent's objects.
        const int own = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        transport.~Transport();
        good = good && ::fcntl(own, F_GETFD) >= 0;
        ::_exit(good ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      if (status != 0) throw Error(Code::kInternal, "the child found something wrong");
      // One that lives on, and holds nothing open.
      report.peer = ::fork();
      if (report.peer == 0) {
        ::alarm(5);
        for (;;) ::pause();
      }
    }
    for (int i = 0; i < 50; ++i) exchange();
    Processes::say_ready();
    if (transport.rank() == 0) {
      // The parent dies, its child does not.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ::kill(::getpid(), SIGKILL);
    }
    run_one(transport, recv_op(0, &in, sizeof in), 10);
  });
  ranks.wait_ready();
  check_lost(ranks.report(1), 0, "the parent of a living child");
  CHECK(ranks.status(0) == -SIGKILL);
}

// A child may have communicators of its own.
void test_new_communicator_in_a_child() {
  Ranks before = make_tcp_ranks(2, 4096);
  for (auto& rank : before) rank->close();
  before.clear();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    bool good = false;
    (void)failure_of([&] {
      Ranks ranks = make_tcp_ranks(2, 4096);
      int out = 5, in = 0;
      const Ticket ticket = post_one(*ranks[0], send_op(1, &out, sizeof out));
      run_one(*ranks[1], recv_op(0, &in, sizeof in));
      wait_one(*ranks[0], ticket);
      good = in == 5;
    });
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

// A program's signals do not go to the I/O thread.
void test_signals_are_blocked() {
  Ranks ranks = make_tcp_ranks(2, 4096);
  int threads = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(tasks)) {
    if (std::atoi(entry->d_name) == ::getpid() || entry->d_name[0] == '.') continue;
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/status");
    unsigned long long blocked = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("SigBlk:", 0) == 0) blocked = std::strtoull(line.c_str() + 7, nullptr, 16);
    }
    const auto bit = [](int number) { return 1ULL << (number - 1); };
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM})
      threads += (blocked & bit(number)) != 0;
  }
  ::closedir(tasks);
  CHECK(threads >= 2 * 5, "%d", threads);
  sigset_t mine;
  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
  CHECK(!sigismember(&mine, SIGINT), "the creating thread's mask was left changed");
}

}  // namespace

int main() {
  for (const bool shared : {true, false}) {
    Processes::shared_memory = shared;
    test_close_then_exit();
    test_exit_without_close();
    test_fork();
  }
  test_new_communicator_in_a_child();
  test_signals_are_blocked();
  return check::report("transport_tcp_endings");
}
