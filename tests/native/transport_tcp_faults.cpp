// What happens to real processes: killed, stopped.
#include <algorithm>
#include <thread>

#include "transport_processes.h"

namespace {

using namespace harness;

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

}  // namespace

int main() {
  for (const bool shared : {true, false}) {
    Processes::shared_memory = shared;
    test_killed_in_a_wait();
  }
  test_killed_in_a_stream();
  test_killed_while_idle();
  test_survivor_leaves_first();
  test_stopped();
  test_abort_and_close_with_a_stopped_peer();
  return check::report("transport_tcp_faults");
}
