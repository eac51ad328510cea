// Ranks of the TCP transport as processes of their own, which may be killed, stopped, or end as they like.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "transport/tcp/tcp.h"
#include "transport_harness.h"

namespace harness {

inline constexpr std::size_t kSlot = std::size_t{1} << 20;

inline int next_port() {
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
  static inline bool shared_memory = true;  // what the ranks are made with

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
      transport = gcomm::make_tcp_env(rank, size_, "127.0.0.1", port, "", kSlot, in_seconds(20), shared_memory);
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

  static inline int ready_fd_ = -1;
  int size_;
  std::vector<pid_t> pids_;
  std::vector<int> reports_;
  std::vector<int> ready_;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline const std::string kLost = " was lost: its process ended or its connection broke";

inline void check_lost(const Report& report, int victim, const char* what) {
  CHECK(report.code == static_cast<int>(Code::kPeerLost) && report.peer == victim, "%s: code %d, peer %d, %s",
        what, report.code, report.peer, report.text);
  const std::string expected = "rank " + std::to_string(victim) + kLost;
  CHECK(report.text == expected, "%s: %s", what, report.text);
}

}  // namespace harness
