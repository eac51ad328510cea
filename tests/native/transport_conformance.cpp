// What every transport promises of messages, over every registration; transport_ends.cpp has how it ends.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "transport_harness.h"

namespace {

using namespace harness;

constexpr std::size_t kSlot = std::size_t{1} << 20;

void check_none(const std::vector<std::optional<Error>>& thrown, const Registration& kind, const char* what) {
  for (std::size_t r = 0; r < thrown.size(); ++r) {
    CHECK(!thrown[r], "%s, %s, rank %zu: %s", kind.medium, what, r, thrown[r]->what());
  }
}

// Every rank sends to every other and receives from it, on one lane; what arrives is compared byte by byte.
void exchange(Transport& transport, Lane lane, std::size_t bytes, std::size_t capacity, bool tells_lengths,
              bool receives_first, std::atomic<int>& wrong) {
  std::vector<TransportOp> ops;
  std::vector<std::vector<unsigned char>> outgoing, incoming;
  outgoing.reserve(8);
  incoming.reserve(8);
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    const auto& out = outgoing.emplace_back(pattern(transport.rank(), peer, static_cast<int>(lane), bytes));
    auto& in = incoming.emplace_back(capacity + 1, 0xEE);
    const TransportOp send = send_op(peer, out.data(), bytes, lane);
    const TransportOp receive = recv_op(peer, in.data(), capacity, lane);
    ops.push_back(receives_first ? receive : send);
    ops.push_back(receives_first ? send : receive);
  }
  std::vector<Ticket> tickets(ops.size());
  std::vector<std::size_t> lengths(ops.size());
  transport.post(ops.data(), ops.size(), tickets.data());
  transport.wait_all(tickets.data(), tickets.size(), lengths.data(), in_seconds(30));
  std::size_t i = 0;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    const auto expected = pattern(peer, transport.rank(), static_cast<int>(lane), bytes);
    const auto& in = incoming[i];
    if (!std::equal(expected.begin(), expected.end(), in.begin())) ++wrong;
    const auto rest = in.begin() + static_cast<long>(bytes);
    const auto end = in.end() - rest > 64 ? rest + 64 : in.end();
    if (std::any_of(rest, end, [](auto b) { return b != 0xEE; })) ++wrong;
    const std::size_t length = lengths[2 * i + (receives_first ? 0 : 1)];
    if (length != (tells_lengths ? bytes : capacity)) ++wrong;
    if (lengths[2 * i + (receives_first ? 1 : 0)] != bytes) ++wrong;
    ++i;
  }
}

void test_sizes(const Registration& kind) {
  // Around a frame header, around the TCP receiver's stage, and up to a whole slot.
  constexpr std::size_t kSizes[] = {0,    1,    7,    8,     9,     48,    4095,         4096,
                                    8183, 8184, 8185, 16376, 65537, 99991, kSlot - 8192, kSlot};
  for (int size = 1; size <= 4; ++size) {
    Ranks ranks = kind.make(size, kSlot);
    for (const auto& rank : ranks) {
      CHECK(rank->size() == size && rank->slot_bytes() == kSlot && std::string(rank->name()) == kind.name);
      for (int peer = 0; peer < size; ++peer) {
        CHECK(peer == rank->rank() || std::string(rank->medium(peer)) == kind.medium, "%s", kind.medium);
      }
    }
    std::atomic<int> wrong{0};
    check_none(in_threads(size,
                          [&](int r) {
                            for (const std::size_t bytes : kSizes) {
                              for (int lane = 0; lane < gcomm::kLaneCount; ++lane) {
                                const std::size_t capacity = lane == 0 ? kSlot : bytes;
                                exchange(*ranks[static_cast<std::size_t>(r)], Lane(lane), bytes, capacity,
                                         kind.tells_lengths, lane != 1, wrong);
                              }
                            }
                          }),
               kind, "sizes");
    CHECK(wrong == 0, "%s, %d ranks: %d wrong", kind.medium, size, wrong.load());
  }
}

// Many messages of all sizes in flight at once, awaited in another order than they were posted in.
void test_many_outstanding(const Registration& kind) {
  constexpr int kCount = 600;
  Ranks ranks = kind.make(3, kSlot);
  std::atomic<int> wrong{0};
  const auto bytes_of = [](int source, int i) {
    return static_cast<std::size_t>((source * 131 + i * 977) % 20011);
  };
  const auto body = [&](int r) {
    Transport& transport = *ranks[static_cast<std::size_t>(r)];
    std::vector<std::vector<unsigned char>> sent, got;
    std::vector<TransportOp> ops;
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < kCount && peer != r; ++i) {
        sent.push_back(pattern(r, peer, i, bytes_of(r, i)));
        got.emplace_back(bytes_of(peer, i));
        // Not all receives ahead: the other side often comes first.
        if (i % 2 == 0) ops.push_back(recv_op(peer, got.back().data(), got.back().size()));
        ops.push_back(send_op(peer, sent.back().data(), sent.back().size()));
        if (i % 2 == 1) ops.push_back(recv_op(peer, got.back().data(), got.back().size()));
      }
    }
    std::vector<Ticket> tickets(ops.size());
    for (std::size_t at = 0; at < ops.size(); at += 7) {
      transport.post(&ops[at], std::min<std::size_t>(7, ops.size() - at), &tickets[at]);
    }
    std::mt19937 random(static_cast<unsigned>(r));
    std::shuffle(tickets.begin(), tickets.end(), random);
    for (std::size_t at = 0; at < tickets.size(); at += 100) {
      transport.wait_all(&tickets[at], std::min<std::size_t>(100, tickets.size() - at), nullptr,
                         in_seconds(30));
    }
    std::size_t at = 0;
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < kCount && peer != r; ++i, ++at) {
        if (got[at] != pattern(peer, r, i, bytes_of(peer, i))) ++wrong;
      }
    }
  };
  check_none(in_threads(3, body), kind, "many outstanding");
  CHECK(wrong == 0, "%s: %d messages wrong", kind.medium, wrong.load());
}

// A lane full of messages that nobody asks for does not hold up the others.
void test_lanes_are_independent(const Registration& kind) {
  Ranks ranks = kind.make(2, kSlot);
  constexpr int kUnasked = 32;
  std::vector<unsigned char> big(kSlot, 7);
  std::vector<Ticket> unasked;
  for (int i = 0; i < kUnasked; ++i) {
    unasked.push_back(post_one(*ranks[0], send_op(1, big.data(), big.size(), Lane::kCollective)));
  }
  std::atomic<int> wrong{0};
  check_none(in_threads(2,
                        [&](int r) {
                          Transport& transport = *ranks[static_cast<std::size_t>(r)];
                          for (int i = 0; i < 20; ++i) {
                            exchange(transport, Lane::kP2p, 100000, 100000, true, true, wrong);
                            exchange(transport, Lane::kAck, 48, 48, true, true, wrong);
                          }
                        }),
             kind, "lanes");
  CHECK(wrong == 0);
  // And what waited arrives in the end.
  std::vector<unsigned char> got(kSlot);
  check_none(in_threads(2,
                        [&](int r) {
                          if (r == 0)
                            ranks[0]->wait_all(unasked.data(), unasked.size(), nullptr, in_seconds(30));
                          for (int i = 0; i < kUnasked && r == 1; ++i) {
                            got.assign(kSlot, 0);
                            run_one(*ranks[1], recv_op(0, got.data(), got.size()));
                            if (got != big) ++wrong;
                          }
                        }),
             kind, "lanes, the rest");
  CHECK(wrong == 0);
}

// Several threads of each rank at once, a lane each.
void test_threads(const Registration& kind) {
  Ranks ranks = kind.make(2, kSlot);
  std::atomic<int> wrong{0};
  check_none(in_threads(2 * gcomm::kLaneCount,
                        [&](int i) {
                          Transport& transport = *ranks[static_cast<std::size_t>(i % 2)];
                          for (int n = 0; n < 150; ++n) {
                            const std::size_t bytes = n % 10 == 0 ? 300000 : static_cast<std::size_t>(n * 40);
                            exchange(transport, Lane(i / 2), bytes, bytes, true, n % 2 == 0, wrong);
                          }
                        }),
             kind, "threads");
  CHECK(wrong == 0, "%s: %d wrong", kind.medium, wrong.load());
}

void test_bad_arguments(const Registration& kind) {
  Ranks ranks = kind.make(2, 1024);
  unsigned char data[2048] = {};
  CHECK_THROWS(post_one(*ranks[0], send_op(0, data, 1)), Code::kInvalid);
  CHECK_THROWS(post_one(*ranks[0], send_op(2, data, 1)), Code::kInvalid);
  CHECK_THROWS(post_one(*ranks[0], recv_op(-1, data, 1)), Code::kInvalid);
  CHECK_THROWS(post_one(*ranks[0], send_op(1, data, 1, Lane(3))), Code::kInvalid);
  CHECK_THROWS(post_one(*ranks[0], send_op(1, data, 1025)), Code::kInvalid);
  CHECK_THROWS(post_one(*ranks[0], recv_op(1, nullptr, 1)), Code::kInvalid);
  // A batch with one bad operation starts none of them.
  const TransportOp batch[2] = {send_op(1, data, 5), send_op(9, data, 5)};
  Ticket tickets[2];
  CHECK_THROWS(ranks[0]->post(batch, 2, tickets), Code::kInvalid);
  // Nothing of it harmed the communicator.
  std::atomic<int> wrong{0};
  check_none(in_threads(2,
                        [&](int r) {
                          exchange(*ranks[static_cast<std::size_t>(r)], Lane::kCollective, 1024, 1024, true,
                                   true, wrong);
                        }),
             kind, "after bad arguments");
  CHECK(wrong == 0);
  const Ticket ticket = post_one(*ranks[0], send_op(1, data, 1));
  run_one(*ranks[1], recv_op(0, data, 1));
  wait_one(*ranks[0], ticket);
  CHECK_THROWS(wait_one(*ranks[0], ticket), Code::kInternal);
  ranks[0]->wait_all(nullptr, 0, nullptr, in_seconds(0));
}

void test_too_long(const Registration& kind) {
  Ranks ranks = kind.make(2, 4096);
  std::vector<unsigned char> out(4096, 3), in(4096, 0xEE);
  const auto thrown = in_threads(2, [&](int r) {
    Transport& transport = *ranks[static_cast<std::size_t>(r)];
    run_one(transport, r == 0 ? send_op(1, out.data(), 100) : recv_op(0, in.data(), 99));
    // The sender may be through before the receiver notices.
    run_one(transport, recv_op(1 - r, in.data(), 10));
  });
  CHECK(thrown[1] && thrown[1]->code() == Code::kMismatch, "%s", kind.medium);
  CHECK(thrown[0] && thrown[0]->code() == Code::kMismatch, "%s", kind.medium);
  const bool says = std::string(thrown[1]->what()).find("100 bytes from rank 0") != std::string::npos;
  CHECK(says, "%s: %s", kind.medium, thrown[1]->what());
  CHECK(std::all_of(in.begin(), in.end(), [](auto b) { return b == 0xEE; }), "%s: bytes were copied",
        kind.medium);
}

void test_ready(const Registration& kind) {
  Ranks ranks = kind.make(2, 4096);
  unsigned char out[8] = {1}, in[8] = {};
  const Ticket receive = post_one(*ranks[1], recv_op(0, in, 8));
  CHECK(!ranks[1]->ready(&receive, 1), "%s", kind.medium);
  const Ticket send = post_one(*ranks[0], send_op(1, out, 8));
  if (kind.knows_ready) {
    const Deadline end = in_seconds(10);
    bool ready = false;
    while (!ready && Clock::now() < end) ready = ranks[1]->ready(&receive, 1);
    CHECK(ready, "%s", kind.medium);
  }
  wait_one(*ranks[1], receive);
  wait_one(*ranks[0], send);
  // Also where the message came before its receive.
  out[0] = 2;
  const Ticket early = post_one(*ranks[0], send_op(1, out, 8, Lane::kP2p));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Ticket late = post_one(*ranks[1], recv_op(0, in, 8, Lane::kP2p));
  if (kind.knows_ready) CHECK(ranks[1]->ready(&late, 1), "%s", kind.medium);
  wait_one(*ranks[1], late);
  wait_one(*ranks[0], early);
  CHECK(in[0] == 2, "%s", kind.medium);
}

using Test = void (*)(const Registration&);

}  // namespace

int main() {
  constexpr Test kTests[] = {test_sizes,   test_many_outstanding, test_lanes_are_independent,
                             test_threads, test_bad_arguments,    test_too_long,
                             test_ready};
  for (const Registration& kind : registrations()) {
    for (const Test test : kTests) test(kind);
  }
  return check::report("transport_conformance");
}
