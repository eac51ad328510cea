#include "transport/tcp/communicator.h"

#include <algorithm>

#include "base/thread.h"
#include "transport/failures.h"
#include "transport/tcp/shared_stream.h"
#include "transport/tcp/socket_stream.h"

namespace gcomm::tcp {
namespace {

using Kind = TransportOp::Kind;

// How long a waiter looks again and again before it goes to sleep: a message that is about to arrive costs no
// wake-up then, which is most of a small message's time.
constexpr std::chrono::microseconds kSpin{20};
// After this many spins in vain at most one wait in 2^kMaxBackoff spins: where ranks share a core, or wait for
// long, spinning takes time from those who are waited for.
constexpr unsigned kMaxBackoff = 6;

// Milliseconds for epoll_wait(), where a negative number would mean for ever.
int poll_timeout(Clock::time_point now, Deadline deadline) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(1);
  if (deadline <= now) return 0;
  const auto left = std::min<Clock::duration>(deadline - now, kLongest);
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

std::unique_ptr<Stream> make_stream(Fd connection, const SharedMemory& memory, Lane lane, bool is_maker) {
  if (!memory.valid()) return std::make_unique<SocketStream>(std::move(connection));
  const RingPlace of_maker = memory.ring(lane, RingEnd::kMaker);
  const RingPlace of_taker = memory.ring(lane, RingEnd::kTaker);
  return std::make_unique<SharedStream>(std::move(connection), is_maker ? of_taker : of_maker,
                                        is_maker ? of_maker : of_taker);
}

}  // namespace

Communicator::Peer::Peer(PeerSockets sockets, bool is_maker, const std::atomic<bool>& broken)
    : memory(std::move(sockets.memory)),
      lanes{LaneEnd(make_stream(std::move(sockets.lanes[0]), memory, Lane(0), is_maker), broken),
            LaneEnd(make_stream(std::move(sockets.lanes[1]), memory, Lane(1), is_maker), broken),
            LaneEnd(make_stream(std::move(sockets.lanes[2]), memory, Lane(2), is_maker), broken)},
      control(std::move(sockets.control)) {}

Communicator::Communicator(int rank_of_this, int world_size, std::size_t slot_bytes, Mesh mesh)
    : rank(rank_of_this), size(world_size), slot(slot_bytes) {
  peers_.resize(static_cast<std::size_t>(size));
  for (int p = 0; p < size; ++p) {
    const auto index = static_cast<std::size_t>(p);
    if (p != rank) peers_[index] = std::make_unique<Peer>(std::move(mesh.peers[index]), rank > p, broken_);
  }
  register_sockets();
  if (size > 1) io_thread_ = start_thread([this] { run_io_thread(); });
}

Communicator::~Communicator() { close(); }

bool Communicator::shares_memory_with(int p) const noexcept {
  const auto& peer = peers_[static_cast<std::size_t>(p)];
  return peer != nullptr && peer->memory.valid();
}

std::size_t Communicator::buffer_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    for (const LaneEnd& lane : peer->lanes) bytes += lane.buffer_bytes();
  }
  return bytes;
}

void Communicator::throw_if_over(const Lock&) const {
  if (closed_) throw communicator_closed();
  if (failure_) throw Error(*failure_);
}

void Communicator::wake(Wait& wait) {
  if (&wait == polling_) {
    kick();
  } else {
    wait.changed.notify_one();
  }
}

void Communicator::wake_everyone() {
  for (Wait* wait = waits_; wait != nullptr; wait = wait->next) wake(*wait);
  if (io_polling_) kick();
  io_changed_.notify_all();
}

void Communicator::complete(OpList& done, const Wait* self) {
  if (done.empty()) return;
  const Lock lock(mutex_);
  while (!done.empty()) {
    TcpOp* op = done.pop();
    op->complete.store(true, std::memory_order_release);
    Wait* wait = op->wait;
    if (wait != nullptr && --wait->remaining == 0 && wait != self) wake(*wait);
  }
}

// The first failure stays. All others hear of it, also where this rank heard of it from one of them: each must
// have the reason before it sees this rank go away because of it.
void Communicator::fail(const Error& why) noexcept {
  {
    const Lock lock(mutex_);
    if (failure_) return;
    failure_.emplace(why.code(), clip_failure_text(why.what()), why.peer());
    broken_.store(true, std::memory_order_release);
    wake_everyone();
  }
  for_each_peer([&](int, Peer& other) { other.control->send_notice(*failure_); });
}

void Communicator::abort(const Error& why) noexcept {
  {
    const Lock lock(mutex_);
    if (closed_) return;
  }
  fail(why);
}

void Communicator::post(const TransportOp* ops, std::size_t n, Ticket* tickets) {
  check_ops(ops, n, rank, size, slot);
  OpRefs refs(n);
  {
    const Lock lock(mutex_);
    throw_if_over(lock);
    for (std::size_t i = 0; i < n; ++i) {
      TcpOp* op = pool_.take();
      op->op = ops[i];
      op->moved = 0;
      op->length = ops[i].kind == Kind::kSend ? ops[i].bytes : 0;
      op->wait = nullptr;
      op->complete.store(false, std::memory_order_relaxed);
      refs[i] = op;
      tickets[i] = TicketPool<TcpOp>::ticket_of(*op);
    }
  }
  // All are queued before the first byte moves: the messages for one lane then leave in one system call.
  for (TcpOp* op : refs) {
    if (op->op.kind == Kind::kSend) {
      lane_of(op->op).post_send(op);
    } else {
      lane_of(op->op).post_receive(op);
    }
  }
  for (TcpOp* op : refs) {
    if (op->op.kind == Kind::kSend && op->first_in_queue) send_on(op->op.peer, op->op.lane, nullptr);
  }
}

bool Communicator::ready(const Ticket* tickets, std::size_t n) {
  OpRefs refs(n);
  {
    Lock lock(mutex_);
    if (closed_ || failure_) return true;  // a wait would throw at once
    for (std::size_t i = 0; i < n; ++i) refs[i] = pool_.find(tickets[i]);
  }
  for (TcpOp* op : refs) {
    const bool receives = op->op.kind == Kind::kRecv;
    if (!op->complete.load(std::memory_order_acquire) && receives && lane_of(op->op).may_receive()) {
      receive_on(op->op.peer, op->op.lane, nullptr);
    }
    if (!op->complete.load(std::memory_order_acquire)) return broken_.load(std::memory_order_acquire);
  }
  return true;
}

void Communicator::link(Wait& wait) {
  wait.next = waits_;
  if (waits_ != nullptr) waits_->previous = &wait;
  waits_ = &wait;
}

// Whoever leaves sees to it that somebody polls for those who stay.
void Communicator::unlink(Wait& wait) {
  (wait.previous == nullptr ? waits_ : wait.previous->next) = wait.next;
  if (wait.next != nullptr) wait.next->previous = wait.previous;
  if (waits_ != nullptr && polling_ == nullptr && !io_polling_) waits_->changed.notify_one();
  if (closed_) io_changed_.notify_all();
}

void Communicator::wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) {
  OpRefs refs(n);
  {
    const Lock lock(mutex_);
    throw_if_over(lock);
    for (std::size_t i = 0; i < n; ++i) refs[i] = pool_.find(tickets[i]);
  }
  // What lies in the sockets since before it was posted makes no new event.
  receive_now(refs);
  Lock lock(mutex_);
  Wait wait;
  if (n > 0) wait.lane = refs[0]->op.lane;
  link(wait);
  for (TcpOp* op : refs) {
    if (op->complete.load(std::memory_order_relaxed)) continue;
    op->wait = &wait;
    ++wait.remaining;
  }
  while (goes_on(lock, wait)) {
    fail_if_peer_closed(lock, refs);
    if (failure_) break;
    if (Clock::now() < deadline) {
      wait_turn(lock, wait, deadline);
    } else {
      look_again(lock, refs);
      if (goes_on(lock, wait)) fail_late(lock, wait, refs);
    }
  }
  unlink(wait);
  if (failure_ || closed_) {
    for (TcpOp* op : refs) op->wait = nullptr;
    const Error why = closed_ ? communicator_closed() : Error(*failure_);
    lock.unlock();
    // The buffers are the caller's again: nobody may be reading into them or writing from them.
    for_each_peer([](int, Peer& other) {
      for (LaneEnd& lane : other.lanes) lane.quiesce();
    });
    throw why;
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (received != nullptr) received[i] = refs[i]->length;
    pool_.give_back(refs[i]);
  }
}

bool Communicator::goes_on(const Lock&, const Wait& wait) const {
  return wait.remaining > 0 && !failure_ && !closed_;
}

// Polls, if nobody does, or sleeps until there is news.
void Communicator::wait_turn(Lock& lock, Wait& wait, Deadline deadline) {
  if (polling_ != nullptr || io_polling_) {
    if (deadline == Deadline::max()) {
      wait.changed.wait(lock);
    } else {
      wait.changed.wait_until(lock, deadline);
    }
    return;
  }
  polling_ = &wait;
  ++polls_by_waiters_;
  const bool spins = worth_spinning();
  lock.unlock();
  bool news = poll_once(0, &wait);
  if (!news && spins) {
    const Clock::time_point end = Clock::now() + kSpin;
    while (!news && Clock::now() < end) news = poll_once(0, &wait);
    vain_spins_ = news ? 0 : vain_spins_ + 1;
  }
  if (!news) poll_once(poll_timeout(Clock::now(), deadline), &wait);
  lock.lock();
  polling_ = nullptr;
  if (io_asleep_) {
    io_asleep_ = false;
    io_changed_.notify_one();
  }
}

bool Communicator::worth_spinning() {
  const unsigned backoff = std::min(vain_spins_, kMaxBackoff);
  return polls_by_waiters_ % (std::uint64_t{1} << backoff) == 0;
}

// An operation with a peer that said goodbye can only complete if its message was sent before.
void Communicator::fail_if_peer_closed(Lock& lock, const OpRefs& ops) {
  for (const TcpOp* op : ops) {
    if (op->complete.load(std::memory_order_relaxed) || !control_of(op->op.peer).peer_said_goodbye()) continue;
    if (op->op.kind == Kind::kRecv && !lane_of(op->op).ended()) continue;
    lock.unlock();
    fail(peer_closed(op->op.peer));
    lock.lock();
    return;
  }
}

void Communicator::receive_now(const OpRefs& ops) {
  for (TcpOp* op : ops) {
    const bool receives = op->op.kind == Kind::kRecv;
    if (receives && !op->complete.load(std::memory_order_acquire) && lane_of(op->op).may_receive()) {
      receive_on(op->op.peer, op->op.lane, nullptr);
    }
  }
}

}  // namespace gcomm::tcp
