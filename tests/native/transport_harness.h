// Communicators of every transport, with ranks as threads, for tests that are the same for all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/tcp/tcp.h"
#include "transport/transport.h"

namespace harness {

using gcomm::Clock;
using gcomm::Code;
using gcomm::Deadline;
using gcomm::Error;
using gcomm::Lane;
using gcomm::Ticket;
using gcomm::Transport;
using gcomm::TransportOp;

using Ranks = std::vector<std::unique_ptr<Transport>>;

struct Registration {
  const char* name;
  const char* medium;  // which of the transport's ways to carry bytes
  Ranks (*make)(int size, std::size_t slot);
  bool tells_lengths;   // wait_all() reports what arrived, not what was posted
  bool tells_culprits;  // peers learn the culprit of an abort
  bool knows_ready;
};

// local, tcp through shared memory and through sockets, and callbacks over local.
const std::vector<Registration>& registrations();

Ranks make_tcp_ranks(int size, std::size_t slot, bool shared_memory = true);
Ranks make_callback_ranks(int size, std::size_t slot);

inline Deadline in_seconds(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

inline TransportOp send_op(int peer, const void* data, std::size_t bytes, Lane lane = Lane::kCollective) {
  return {TransportOp::Kind::kSend, lane, peer, const_cast<void*>(data), bytes};
}
inline TransportOp recv_op(int peer, void* data, std::size_t bytes, Lane lane = Lane::kCollective) {
  return {TransportOp::Kind::kRecv, lane, peer, data, bytes};
}

Ticket post_one(Transport& transport, const TransportOp& op);
std::size_t wait_one(Transport& transport, Ticket ticket, double seconds = 20);
// One send or receive, waited for. Returns the length.
std::size_t run_one(Transport& transport, const TransportOp& op, double seconds = 20);

// The failure of call, or nothing.
std::optional<Error> failure_of(const std::function<void()>& call);

// Calls body(rank) in a thread each, and returns what each threw.
std::vector<std::optional<Error>> in_threads(int size, const std::function<void(int)>& body);

// A message that depends on who sends it, to whom, and which it is.
std::vector<unsigned char> pattern(int source, int destination, int index, std::size_t bytes);

}  // namespace harness
