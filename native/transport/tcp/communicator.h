// The running TCP communicator, once every connection stands.
//
// Whoever waits does the work: the first thread inside wait_all() polls the sockets itself, so that a message
// costs one wake-up. The I/O thread polls when nobody waits (sends that did not fit the socket, receives posted
// ahead, peers that end), and steps back for a moment whenever a waiter has polled.
//
// Locks: `mutex_` (tickets, waits, who polls, the failure) is never held during a system call on a connection;
// a lane's mutexes are never held while mutex_ is taken.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transport/scratch.h"
#include "transport/tcp/control.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/op.h"
#include "transport/ticket_pool.h"
#include "transport/transport.h"

namespace gcomm::tcp {

// The records behind a call's operations.
using OpRefs = Scratch<TcpOp*>;

class Communicator {
 public:
  Communicator(int rank, int size, std::size_t slot, Mesh mesh);
  ~Communicator();

  void post(const TransportOp* ops, std::size_t n, Ticket* tickets);
  void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline);
  bool ready(const Ticket* tickets, std::size_t n);
  void abort(const Error& why) noexcept;
  void close() noexcept;

  bool shares_memory_with(int p) const noexcept;
  std::size_t buffer_bytes() const noexcept;

  const int rank;
  const int size;
  const std::size_t slot;

 private:
  struct Peer {
    // is_maker: this rank connected to the peer, not the other way round.
    Peer(PeerSockets sockets, bool is_maker, const std::atomic<bool>& broken);
    SharedMemory memory;  // where valid, the lanes use it
    std::array<LaneEnd, kLaneCount> lanes;
    std::unique_ptr<ControlSocket> control;
  };
  static_assert(kLaneCount == 3);

  using Lock = std::unique_lock<std::mutex>;

  ControlSocket& control_of(int p) { return *peer(p).control; }
  Peer& peer(int p) { return *peers_[static_cast<std::size_t>(p)]; }
  LaneEnd& lane_of(const TransportOp& op) { return peer(op.peer).lanes[static_cast<std::size_t>(op.lane)]; }
  template <typename Visit>
  void for_each_peer(Visit visit) {
    for (int p = 0; p < size; ++p) {
      if (p != rank) visit(p, peer(p));
    }
  }

  // communicator.cpp
  void throw_if_over(const Lock& lock) const;
  void complete(OpList& done, const Wait* self);
  void wake(Wait& wait);
  void wake_everyone();
  void link(Wait& wait);
  void unlink(Wait& wait);
  void fail_if_peer_closed(Lock& lock, const OpRefs& ops);
  void receive_now(const OpRefs& ops);
  void wait_turn(Lock& lock, Wait& wait, Deadline deadline);
  bool goes_on(const Lock& lock, const Wait& wait) const;
  bool worth_spinning();
  void fail(const Error& why) noexcept;

  // late.cpp
  void look_again(Lock& lock, const OpRefs& ops);
  void fail_late(Lock& lock, Wait& wait, const OpRefs& ops);
  std::vector<bool> late_peers(const Lock& lock, const OpRefs& ops) const;
  bool waits_on(Lane lane);

  // poll.cpp
  void register_sockets();
  bool poll_once(int timeout_ms, const Wait* self);
  void receive_on(int p, Lane lane, const Wait* self);
  void send_on(int p, Lane lane, const Wait* self);
  void after_lane(int p, Lane lane, LaneState state);
  void read_control(int p);
  void kick() noexcept;
  void run_io_thread();

  // close.cpp
  void flush_sends();
  void say_goodbye();
  void drain(bool lanes, std::chrono::milliseconds patience);
  bool failed();

  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; empty for this one
  Fd epoll_;
  Fd wake_;

  std::mutex mutex_;
  TicketPool<TcpOp> pool_;
  Wait* waits_ = nullptr;    // every thread inside wait_all()
  Wait* polling_ = nullptr;  // the waiter that polls
  bool io_polling_ = false;  // the I/O thread polls
  std::uint64_t polls_by_waiters_ = 0;
  unsigned vain_spins_ = 0;  // in a row
  bool io_asleep_ = false;   // the I/O thread wants to be woken when the waiter that polls stops
  bool stop_io_ = false;
  bool closed_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> broken_{false};  // failure_ is set: no buffer may be touched any more
  std::condition_variable io_changed_;
  std::thread io_thread_;
};

}  // namespace gcomm::tcp
