// What happens to real processes: killed, stopped, ending without a word, forking.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "check.h"
#include "transport/fork.h"
#include "transport/tcp/tcp.h"
#include "transport_harness.h"

namespace {

using namespace harness;

constexpr std::size_t kSlot = std::size_t{1} << 20;

int next_port() {
  static int next = 40000 + static_cast<int>(::getpid() % 500) * 40;
  return next += 20;
}

// What a rank has to say to the test.
struct Report {
  int code = -1;  // of its failure; -1: none
  int peer = -1;
  double seconds = 0;  // as the rank sees fit
  char text[500] = "";
};

// Ranks as processes of their own. The test's process has no communicator.
class Processes {
 public:
  using Body = std::function<void(Transport&, Report&)>;

  Processes(int size, const Body& body) : size_(size) {
    const int port = next_port();
    for (int r = 0; r < size; ++r) {
      int reports[2], ready[2];
      if (::pipe2(reports, O_CLOEXEC) != 0 || ::pipe2(ready, O_CLOEXEC) != 0) std::abort();
      const pid_t pid = ::fork();
      if (pid < 0) std::abort();  // kill() would take it for every process there is
      if (pid == 0) run(r, port, body, reports[1], ready[1]);
      ::close(reports[1]);
      ::close(ready[1]);
      pids_.push_back(pid);
      reports_.push_back(reports[0]);
      ready_.push_back(ready[0]);
    }
  }
  ~Processes() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    for (const int fd : reports_) ::close(fd);
    for (const int fd : ready_) ::close(fd);
  }

  // Every rank's communicator stands, and it has got as far as `say_ready()`.
  void wait_ready() {
    for (const int fd : ready_) {
      char byte;
      CHECK(::read(fd, &byte, 1) == 1, "a rank did not come up");
    }
  }
  static void say_ready() { (void)!::write(ready_fd_, "r", 1); }

  void signal(int rank, int number) {
    const pid_t pid = pids_[static_cast<std::size_t>(rank)];
    if (pid > 0) ::kill(pid, number);
  }

  // The exit status, or minus the signal that ended it.
  int status(int rank) {
    int status = 0;
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    ::waitpid(pid, &status, 0);
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  Report report(int rank) {
    Report report;
    report.code = -2;
    (void)!::read(reports_[static_cast<std::size_t>(rank)], &report, sizeof report);
    return report;
  }

 private:
  [[noreturn]] void run(int rank, int port, const Body& body, int report_fd, int ready_fd) const {
    ::alarm(60);
    ready_fd_ = ready_fd;
    Report report;
    const auto send = [&] { (void)!::write(report_fd, &report, sizeof report); };
    std::unique_ptr<Transport> transport;
    const auto error = failure_of([&] {
      transport = gcomm::make_tcp_env(rank, size_, "127.0.0.1", port, "", kSlot, in_seconds(20));
      body(*transport, report);
    });
    if (error) {
      report.code = static_cast<int>(error->code());
      report.peer = error->peer();
      std::strncpy(report.text, error->what(), sizeof report.text - 1);
    }
    send();
    transport.reset();
    ::_exit(check::failures() == 0 ? 0 : 1);
  }

  static int ready_fd_;
  int size_;
  std::vector<pid_t> pids_;
  std::vector<int> reports_;
  std::vector<int> ready_;
};

int Processes::ready_fd_ = -1;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const std::string kLost = " was lost: its process ended or its connection broke";

void check_lost(const Report& report, int victim, const char* what) {
  CHECK(report.code == static_cast<int>(Code::kPeerLost) && report.peer == victim, "%s: code %d, peer %d, %s",
        what, report.code, report.peer, report.text);
  const std::string expected = "rank " + std::to_string(victim) + kLost;
  CHECK(report.text == expected, "%s: %s", what, report.text);
}

// Killed while the others wait, for it or for each other, and while a large message is half way.
void test_killed_in_a_wait() {
  for (int victim = 0; victim < 3; ++victim) {
    for (const bool for_each_other : {false, true}) {
      Processes ranks(3, [&](Transport& transport, Report& report) {
        std::vector<char> data(kSlot);
        const int other = 3 - victim - transport.rank();
        Processes::say_ready();
        if (transport.rank() == victim) {
          for (;;) ::pause();
        }
        const auto start = Clock::now();
        const auto error = failure_of([&] {
          run_one(transport, recv_op(for_each_other ? other : victim, data.data(), data.size()), 30);
        });
        report.seconds = seconds_since(start);
        if (error) throw Error(*error);
      });
      ranks.wait_ready();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ranks.signal(victim, SIGKILL);
      const auto start = Clock::now();
      for (int r = 0; r < 3; ++r) {
        if (r == victim) continue;
        check_lost(ranks.report(r), victim, for_each_other ? "waiting for each other" : "waiting for it");
        CHECK(ranks.status(r) == 0);
      }
      CHECK(seconds_since(start) < 3, "%.1f s", seconds_since(start));
    }
  }
}

void test_killed_in_a_stream() {
  for (const int victim : {0, 1}) {
    Processes ranks(2, [&](Transport& transport, Report&) {
      std::vector<char> out(kSlot), in(kSlot);
      Processes::say_ready();
      for (;;) {
        const TransportOp ops[2] = {recv_op(1 - transport.rank(), in.data(), in.size()),
                                    send_op(1 - transport.rank(), out.data(), out.size())};
        Ticket tickets[2];
        transport.post(ops, 2, tickets);
        transport.wait_all(tickets, 2, nullptr, in_seconds(30));
      }
    });
    ranks.wait_ready();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ranks.signal(victim, SIGKILL);
    check_lost(ranks.report(1 - victim), victim, "in a stream");
    CHECK(ranks.status(1 - victim) == 0);
  }
}

// Killed while nobody uses the communicator: the next use says so at once.
void test_killed_while_idle() {
  Processes ranks(3, [&](Transport& transport, Report& report) {
    char byte = 0;
    Processes::say_ready();
    std::this_thread::sleep_for(std::chrono::milliseconds(transport.rank() == 2 ? 60000 : 700));
    const auto start = Clock::now();
    const auto error = failure_of([&] { run_one(transport, send_op(1 - transport.rank(), &byte, 1), 30); });
    report.seconds = seconds_since(start);
    if (error) throw Error(*error);
  });
  ranks.wait_ready();
  ranks.signal(2, SIGKILL);
  for (const int r : {0, 1}) {
    const Report report = ranks.report(r);
    check_lost(report, 2, "idle");
    CHECK(report.seconds < 0.2, "%.2f s", report.seconds);
  }
}

// The first survivor to notice goes away at once, and is not taken for the culprit.
void test_survivor_leaves_first() {
  for (int round = 0; round < 10; ++round) {
    Processes ranks(4, [&](Transport& transport, Report&) {
      char byte = 0;
      Processes::say_ready();
      if (transport.rank() == 3) {
        for (;;) ::pause();
      }
      if (transport.rank() == 0) {
        (void)failure_of([&] { run_one(transport, recv_op(3, &byte, 1), 30); });
        ::_exit(0);
      }
      // The others look up late.
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      run_one(transport, recv_op(0, &byte, 1), 30);
    });
    ranks.wait_ready();
    ranks.signal(3, SIGKILL);
    for (const int r : {1, 2}) check_lost(ranks.report(r), 3, "a survivor left first");
  }
}

// Stopped: the deadline names it, and neither an abort nor close() waits for it, even with full sockets.
void test_stopped() {
  for (int victim = 0; victim < 3; ++victim) {
    Processes ranks(3, [&](Transport& transport, Report& report) {
      std::vector<char> data(kSlot);
      char byte = 0;
      if (transport.rank() == victim) {
        Processes::say_ready();
        run_one(transport, recv_op((victim + 1) % 3, &byte, 1, Lane::kAck), 30);
      }
      std::vector<TransportOp> ops(32, send_op(victim, data.data(), data.size()));
      std::vector<Ticket> tickets(ops.size());
      transport.post(ops.data(), ops.size(), tickets.data());
      Processes::say_ready();
      const auto error =
          failure_of([&] { transport.wait_all(tickets.data(), tickets.size(), nullptr, in_seconds(1)); });
      const auto start = Clock::now();
      transport.abort(Error(Code::kAborted, "after a failure this changes nothing", 0));
      transport.close();
      report.seconds = seconds_since(start);
      if (error) throw Error(*error);
    });
    ranks.wait_ready();
    ranks.signal(victim, SIGSTOP);
    std::string text;
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      const Report report = ranks.report(r);
      CHECK(report.code == static_cast<int>(Code::kTimeout) && report.peer == victim, "%d %d %s", report.code,
            report.peer, report.text);
      CHECK(std::string(report.text).find("timed out waiting for rank " + std::to_string(victim)) !=
                std::string::npos,
            "%s", report.text);
      CHECK(report.seconds < 1, "%.2f s", report.seconds);
    }
    // Woken up again it learns why.
    ranks.signal(victim, SIGCONT);
    const Report late = ranks.report(victim);
    CHECK(late.code == static_cast<int>(Code::kTimeout) && late.peer == victim, "%d: %s", late.code, late.text);
  }
}

void test_abort_and_close_with_a_stopped_peer() {
  for (const bool aborts : {true, false}) {
    Processes ranks(2, [&](Transport& transport, Report& report) {
      std::vector<char> data(kSlot);
      Processes::say_ready();
      if (transport.rank() == 1) {
        for (;;) ::pause();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::vector<TransportOp> ops(64, send_op(1, data.data(), data.size()));
      std::vector<Ticket> tickets(ops.size());
      transport.post(ops.data(), ops.size(), tickets.data());
      const auto start = Clock::now();
      if (aborts) transport.abort(Error(Code::kAborted, "enough", 0));
      if (aborts) report.seconds = seconds_since(start);
      transport.close();
      if (!aborts) report.seconds = seconds_since(start);
    });
    ranks.wait_ready();
    ranks.signal(1, SIGSTOP);
    const Report report = ranks.report(0);
    CHECK(report.code == -1, "%s", report.text);
    CHECK(report.seconds < (aborts ? 0.2 : 5), "%.2f s", report.seconds);
  }
}

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
  test_killed_in_a_wait();
  test_killed_in_a_stream();
  test_killed_while_idle();
  test_survivor_leaves_first();
  test_stopped();
  test_abort_and_close_with_a_stopped_peer();
  test_close_then_exit();
  test_exit_without_close();
  test_fork();
  test_new_communicator_in_a_child();
  test_signals_are_blocked();
  return check::report("transport_tcp_faults");
}
