// The seam between the engine and whatever moves bytes.
//
// A transport connects `size()` ranks. Messages on one (peer, lane, direction) are delivered in the order in
// which they were posted, whole, and to the receive posted in the same position. Messages of different lanes
// never wait for one another: a receive that nobody posts on one lane must not hold up another lane.
// All members but close() and the destructor may be called from several threads at once.
//
// A posted receive is always as long as the buffer it names; the message that arrives may be shorter, never
// longer. Where the transport learns of a longer one before copying, it fails with kMismatch (TCP, local);
// the engine keeps it from happening anywhere by posting every receive at slot_bytes().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace gcomm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

enum class Lane : std::uint8_t {
  kCollective = 0,  // in the communicator's FIFO order
  kP2p = 1,         // send/recv payloads, FIFO for each peer and direction
  kAck = 2,         // the receiver's answer to a kP2p message
};
inline constexpr int kLaneCount = 3;

// Beyond any machine, and memory for each rank can still be had.
inline constexpr int kMostRanks = 1 << 20;

struct TransportOp {
  enum class Kind : std::uint8_t { kSend, kRecv };
  Kind kind;
  Lane lane;
  int peer;
  void* data;         // read by a send, written by a receive; must live until the ticket was awaited
  std::size_t bytes;  // a send's length; a receive's capacity
};

using Ticket = std::uint64_t;

class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual const char* name() const noexcept = 0;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  // The longest message, header included, that the engine may send; a constant of the communicator and the
  // same on every rank.
  virtual std::size_t slot_bytes() const noexcept = 0;

  // How many messages a long range to one peer is best cut into: each costs something whatever its length, and
  // hides the more of the time that encoding takes the shorter it is. The same on every rank.
  virtual std::uint32_t wanted_messages() const noexcept { return 32; }

  // What the transport itself adds to each message on the wire, for honest wire_bytes.
  virtual std::size_t overhead_bytes() const noexcept = 0;

  // Starts n operations and writes their tickets. Never blocks on a peer. Throws the failure that broke the
  // transport, if one did.
  virtual void post(const TransportOp* ops, std::size_t n, Ticket* tickets) = 0;

  // Waits until all n are complete; each ticket is awaited exactly once. received[i], where given, is the
  // length of the message that arrived (a send's own length for sends). Throws kTimeout naming the peers that
  // were waited for, kPeerLost naming the rank, or the failure given to abort() here or on a peer. After a
  // throw the transport is broken for good, and every other wait throws the same failure.
  virtual void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) = 0;

  // True if all n would be ready without waiting. Consumes nothing.
  virtual bool ready(const Ticket* tickets, std::size_t n) = 0;

  // Breaks the transport: pending and later operations fail with `why` here and, as far as the medium can
  // tell them, on every peer (a peer reports the same code, culprit and text). Never blocks for long.
  virtual void abort(const Error& why) noexcept = 0;

  // Orderly end: bytes already posted still reach the peers. Idempotent, bounded in time.
  virtual void close() noexcept = 0;

  // What carries the bytes to and from a peer, for people: name(), or more exactly.
  virtual const char* medium(int peer) const noexcept {
    (void)peer;
    return name();
  }

  // Memory of the transport's own that messages under way lie in.
  virtual std::size_t buffer_bytes() const noexcept { return 0; }

  // False where a buffer may still be touched after wait_all() threw (a host's callbacks that cannot be
  // cancelled): the engine then keeps the buffers alive for the rest of the process.
  virtual bool releases_buffers_on_failure() const noexcept = 0;

 protected:
  Transport() = default;
};

}  // namespace gcomm
