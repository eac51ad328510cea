// What every transport promises of its end, over every registration: deadlines, aborts, closing.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "transport_harness.h"

namespace {

using namespace harness;

void check_none(const std::vector<std::optional<Error>>& thrown, const Registration& kind, const char* what) {
  for (std::size_t r = 0; r < thrown.size(); ++r) {
    CHECK(!thrown[r], "%s, %s, rank %zu: %s", kind.medium, what, r, thrown[r]->what());
  }
}

constexpr std::size_t kSlot = std::size_t{1} << 20;

void test_deadline(const Registration& kind) {
  Ranks ranks = kind.make(3, 4096);
  unsigned char data[3][64] = {};
  // A deadline that has passed does not matter to what is complete.
  const Ticket done = post_one(*ranks[0], send_op(1, data[0], 4));
  run_one(*ranks[1], recv_op(0, data[1], 4));
  ranks[0]->wait_all(&done, 1, nullptr, Clock::now() - std::chrono::seconds(1));

  const auto start = Clock::now();
  const auto thrown = in_threads(3, [&](int r) {
    Transport& transport = *ranks[static_cast<std::size_t>(r)];
    const double seconds = r == 0 ? 0.3 : 20;
    if (r != 2) run_one(transport, recv_op(2, data[r], 64), seconds);
  });
  const auto took = Clock::now() - start;
  CHECK(took > std::chrono::milliseconds(290) && took < std::chrono::seconds(5), "%s", kind.medium);
  for (const int r : {0, 1}) {
    const auto& error = thrown[static_cast<std::size_t>(r)];
    CHECK(error && error->code() == Code::kTimeout, "%s, rank %d", kind.medium, r);
    CHECK(error && std::string(error->what()) == "rank 0 timed out waiting for rank 2", "%s, rank %d: %s",
          kind.medium, r, error->what());
    CHECK(error && (!kind.tells_culprits || error->peer() == 2), "%s, rank %d", kind.medium, r);
  }
  // For good, on every rank, with the same words.
  for (const auto& rank : ranks) {
    const int peer = (rank->rank() + 1) % 3;
    const auto later = failure_of([&] { run_one(*rank, recv_op(peer, data[0], 64), 20); });
    CHECK(later && later->code() == Code::kTimeout && std::string(later->what()) == thrown[0]->what(), "%s",
          kind.medium);
  }
}

void test_timeout_names_all(const Registration& kind) {
  Ranks ranks = kind.make(4, 4096);
  unsigned char data[3][8];
  const TransportOp ops[3] = {recv_op(1, data[0], 8), recv_op(2, data[1], 8), recv_op(3, data[2], 8)};
  Ticket tickets[3];
  ranks[0]->post(ops, 3, tickets);
  unsigned char byte = 1;
  run_one(*ranks[2], send_op(0, &byte, 1));
  const auto error = failure_of([&] { ranks[0]->wait_all(tickets, 3, nullptr, in_seconds(0.2)); });
  CHECK(error && std::string(error->what()) == "rank 0 timed out waiting for ranks 1, 3", "%s: %s", kind.medium,
        error->what());
}

// A rank that waits for the one that is stuck is late as well, but not to blame.
void test_timeout_names_who_is_stuck(const Registration& kind) {
  Ranks ranks = kind.make(3, 4096);
  unsigned char data[3][8];
  const auto thrown = in_threads(2, [&](int r) {
    if (r == 1) {
      run_one(*ranks[1], recv_op(2, data[2], 8));
      return;
    }
    const TransportOp ops[2] = {recv_op(1, data[0], 8), recv_op(2, data[1], 8)};
    Ticket tickets[2];
    ranks[0]->post(ops, 2, tickets);
    ranks[0]->wait_all(tickets, 2, nullptr, in_seconds(0.3));
  });
  for (const auto& error : thrown) {
    CHECK(error && error->code() == Code::kTimeout, "%s", kind.medium);
    CHECK(error && std::string(error->what()) == "rank 0 timed out waiting for rank 2", "%s: %s", kind.medium,
          error->what());
    CHECK(error && (!kind.tells_culprits || error->peer() == 2), "%s", kind.medium);
  }
}

void test_abort(const Registration& kind) {
  Ranks ranks = kind.make(3, 4096);
  unsigned char data[3][64] = {};
  // Waiting in several threads, and one rank that is idle; the text is longer than a notice and not ASCII.
  std::string text = "stopped by hand: ";
  while (text.size() < 3000) text += "\xC3\xA4";
  const Error why(Code::kAborted, text, 1);
  const auto start = Clock::now();
  const auto thrown = in_threads(5, [&](int i) {
    if (i == 4) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ranks[1]->abort(why);
      ranks[1]->abort(Error(Code::kAborted, "second", 2));
      return;
    }
    run_one(*ranks[static_cast<std::size_t>(i % 2)], recv_op(2, data[i % 2], 64, Lane(i / 2)));
  });
  CHECK(Clock::now() - start < std::chrono::seconds(5), "%s", kind.medium);
  std::vector<std::optional<Error>> errors(thrown.begin(), thrown.begin() + 4);
  for (const auto& rank : ranks) {
    errors.push_back(failure_of([&] { run_one(*rank, recv_op((rank->rank() + 1) % 3, data[0], 1)); }));
  }
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const auto& error = errors[i];
    CHECK(error && error->code() == Code::kAborted, "%s, %zu", kind.medium, i);
    if (!error || !kind.tells_culprits) continue;
    CHECK(error->peer() == 1, "%s, %zu", kind.medium, i);
    const std::string said = error->what();
    CHECK(said.size() > 1990 && text.compare(0, said.size(), said) == 0 && (said.size() - 17) % 2 == 0,
          "%s, %zu: %zu", kind.medium, i, said.size());
    CHECK(said == errors[2]->what());
  }
  // Buffers of failed receives are free to go, and nothing is in the way of closing.
  for (const auto& rank : ranks) rank->close();
}

// close() is a goodbye: what was posted before it arrives, what needs the rank after it fails and names it.
void test_close_delivers(const Registration& kind) {
  Ranks ranks = kind.make(3, kSlot);
  const auto big = pattern(1, 0, 5, kSlot);
  std::vector<unsigned char> got(kSlot), small(1000);
  std::vector<unsigned char> goes_away = big;
  for (int lane = 0; lane < gcomm::kLaneCount; ++lane) {
    post_one(*ranks[1], send_op(0, goes_away.data(), 1000, Lane(lane)));
  }
  post_one(*ranks[1], send_op(0, goes_away.data(), goes_away.size()));
  post_one(*ranks[1], recv_op(2, goes_away.data(), goes_away.size()));  // never comes
  check_none(in_threads(2,
                        [&](int i) {
                          if (i == 1) {
                            // More than a socket holds: its receiver takes it while its sender closes.
                            run_one(*ranks[0], recv_op(1, small.data(), small.size()));
                            run_one(*ranks[0], recv_op(1, got.data(), kSlot));
                            return;
                          }
                          ranks[1]->close();
                          ranks[1]->close();
                          std::fill(goes_away.begin(), goes_away.end(), static_cast<unsigned char>(0));
                        }),
             kind, "close");
  CHECK(std::equal(small.begin(), small.end(), big.begin()) && got == big, "%s", kind.medium);
  CHECK_THROWS(post_one(*ranks[1], send_op(0, got.data(), 1)), Code::kClosed);
  CHECK_THROWS(wait_one(*ranks[1], 0), Code::kClosed);
  for (const Lane lane : {Lane::kAck, Lane::kP2p}) {
    std::fill(small.begin(), small.end(), static_cast<unsigned char>(0));
    run_one(*ranks[0], recv_op(1, small.data(), small.size(), lane));
    CHECK(std::equal(small.begin(), small.end(), big.begin()), "%s", kind.medium);
  }
  // The others go on.
  const Ticket ticket = post_one(*ranks[0], send_op(2, big.data(), 100));
  run_one(*ranks[2], recv_op(0, got.data(), kSlot));
  wait_one(*ranks[0], ticket);
  // Until one of them needs the rank that left.
  const auto start = Clock::now();
  const auto error = failure_of([&] { run_one(*ranks[2], recv_op(1, got.data(), 10)); });
  CHECK(error && error->code() == Code::kPeerLost, "%s", kind.medium);
  CHECK(error && std::string(error->what()) == "rank 1 closed its communicator", "%s: %s", kind.medium,
        error->what());
  CHECK(error && (!kind.tells_culprits || error->peer() == 1), "%s", kind.medium);
  CHECK(Clock::now() - start < std::chrono::seconds(3), "%s", kind.medium);
}

// A wait that is on when its peer says goodbye.
void test_close_ends_waits(const Registration& kind) {
  for (const bool sends : {false, true}) {
    Ranks ranks = kind.make(2, kSlot);
    std::vector<unsigned char> data(kSlot);
    const auto start = Clock::now();
    const auto thrown = in_threads(2, [&](int r) {
      if (r == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ranks[1]->close();
        return;
      }
      // A send may well be complete when its peer closes: the system has taken it. An answer will not come.
      std::vector<TransportOp> ops;
      for (int i = 0; i < 64 && sends; ++i) ops.push_back(send_op(1, data.data(), data.size()));
      ops.push_back(recv_op(1, data.data(), data.size(), Lane::kAck));
      std::vector<Ticket> tickets(ops.size());
      ranks[0]->post(ops.data(), ops.size(), tickets.data());
      ranks[0]->wait_all(tickets.data(), tickets.size(), nullptr, in_seconds(20));
    });
    CHECK(thrown[0] && thrown[0]->code() == Code::kPeerLost &&
              std::string(thrown[0]->what()) == "rank 1 closed its communicator",
          "%s, sends %d: %s", kind.medium, sends, thrown[0] ? thrown[0]->what() : "nothing");
    CHECK(Clock::now() - start < std::chrono::seconds(4), "%s", kind.medium);
  }
}

using Test = void (*)(const Registration&);

}  // namespace

int main() {
  constexpr Test kTests[] = {test_deadline, test_timeout_names_all, test_timeout_names_who_is_stuck,
                             test_abort,    test_close_delivers,    test_close_ends_waits};
  for (const Registration& kind : registrations()) {
    for (const Test test : kTests) test(kind);
  }
  return check::report("transport_ends");
}
