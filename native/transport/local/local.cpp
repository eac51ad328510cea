#include "transport/local/local.h"

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "transport/failures.h"
#include "transport/fork.h"
#include "transport/ticket_pool.h"

namespace gcomm {
namespace {

struct Wait {
  std::size_t remaining = 0;
};

struct LocalOp : PoolRecord {
  enum class State { kQueued, kCopying, kDone };
  TransportOp op{};
  int owner = 0;
  State state = State::kQueued;
  std::size_t length = 0;  // of the message, once done
  Wait* wait = nullptr;
  LocalOp* next = nullptr;
  std::unique_ptr<std::byte[]> kept;  // a send's bytes after its rank closed
  bool orphan = false;                // a send whose rank closed: nobody awaits it
};

// Operations without a counterpart yet, oldest first: all sends or all receives.
struct Channel {
  LocalOp* head = nullptr;
  LocalOp* tail = nullptr;

  void push(LocalOp* op) {
    op->next = nullptr;
    (head == nullptr ? head : tail->next) = op;
    tail = op;
  }
  LocalOp* pop() {
    LocalOp* op = head;
    head = op->next;
    return op;
  }
};

struct RankState {
  TicketPool<LocalOp> pool;
  std::condition_variable changed;
  std::array<int, kLaneCount> waiting{};  // threads inside wait_all(), by the lane of their operations
  int copying = 0;                        // operations of this rank that a copy is reading or writing
  bool closing = false;                   // close() waits for the last copy
  bool closed = false;
};

// Counts a thread among those that wait, as long as it lives; under the hub's mutex.
class WaitingMark {
 public:
  WaitingMark(RankState& rank, Lane lane) : count_(rank.waiting[static_cast<std::size_t>(lane)]) { ++count_; }
  ~WaitingMark() { --count_; }
  WaitingMark(const WaitingMark&) = delete;
  WaitingMark& operator=(const WaitingMark&) = delete;

 private:
  int& count_;
};

// Everything the ranks share. One mutex covers all of it; copies are made without it.
class Hub {
 public:
  Hub(int n, std::size_t longest)
      : size(n),
        slot(longest),
        ranks(static_cast<std::size_t>(n)),
        channels(static_cast<std::size_t>(n) * static_cast<std::size_t>(n) * kLaneCount) {}

  RankState& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }

  Channel& channel(int source, int destination, Lane lane) {
    return channels[static_cast<std::size_t>((source * size + destination) * kLaneCount +
                                             static_cast<int>(lane))];
  }

  Channel& channel_of(const LocalOp& op) {
    return op.op.kind == TransportOp::Kind::kSend ? channel(op.owner, op.op.peer, op.op.lane)
                                                  : channel(op.op.peer, op.owner, op.op.lane);
  }

  // The first failure stays; every rank reports it.
  void fail(Error why) {
    if (!broken) broken.emplace(why.code(), clip_failure_text(why.what()), why.peer());
    for (RankState& state : ranks) state.changed.notify_all();
  }

  // Queues op, or carries the message if the other side is there already.
  void start(std::unique_lock<std::mutex>& lock, LocalOp* op) {
    Channel& queue = channel_of(*op);
    if (queue.head == nullptr || queue.head->op.kind == op->op.kind) {
      queue.push(op);
      return;
    }
    LocalOp* other = queue.pop();
    const bool sending = op->op.kind == TransportOp::Kind::kSend;
    LocalOp* send = sending ? op : other;
    LocalOp* receive = sending ? other : op;
    const std::size_t length = send->op.bytes;
    if (length > receive->op.bytes) {
      fail(message_too_long(receive->owner, send->owner, op->op.lane, length, receive->op.bytes));
      return;
    }
    for (LocalOp* side : {send, receive}) {
      side->state = LocalOp::State::kCopying;
      ++rank(side->owner).copying;
    }
    lock.unlock();
    if (length > 0) std::memcpy(receive->op.data, send->op.data, length);
    lock.lock();
    finish(send, length);
    finish(receive, length);
  }

  const int size;
  const std::size_t slot;
  std::mutex mutex;
  std::optional<Error> broken;
  std::deque<RankState> ranks;
  std::vector<Channel> channels;

 private:
  void finish(LocalOp* op, std::size_t length) {
    RankState& state = rank(op->owner);
    op->state = LocalOp::State::kDone;
    op->length = length;
    --state.copying;
    if (op->orphan) {
      op->kept.reset();
      state.pool.give_back(op);
      return;
    }
    const bool last = op->wait != nullptr && --op->wait->remaining == 0;
    // With the hub broken, or its rank closing, somebody waits for copies to end.
    if (last || broken || state.closing) state.changed.notify_all();
  }
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), generation_(fork_generation()) {}

  ~LocalTransport() override {
    close();
    // A child's copy must not destroy condition variables that threads of the parent seem to wait on.
    if (forked()) new std::shared_ptr<Hub>(std::move(hub_));
  }

  const char* name() const noexcept override { return "local"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->size; }
  std::size_t slot_bytes() const noexcept override { return hub_->slot; }
  std::size_t overhead_bytes() const noexcept override { return 0; }
  bool releases_buffers_on_failure() const noexcept override { return true; }

  void post(const TransportOp* ops, std::size_t n, Ticket* tickets) override;
  void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) override;
  bool ready(const Ticket* tickets, std::size_t n) override;
  void abort(const Error& why) noexcept override;
  void close() noexcept override;

 private:
  bool forked() const noexcept { return fork_generation() != generation_; }
  RankState& mine() { return hub_->rank(rank_); }
  void keep_sends(const Channel& outgoing) noexcept;

  // Throws if this rank cannot go on, but not before the last copy has let go of its buffers.
  void throw_if_over(std::unique_lock<std::mutex>& lock) {
    if (!hub_->broken && !mine().closed) return;
    mine().changed.wait(lock, [&] { return mine().copying == 0; });
    if (mine().closed) throw communicator_closed();
    throw Error(*hub_->broken);
  }

  // True if some of the operations have no counterpart yet. One that never will have any breaks the hub.
  bool fail_if_peer_closed(const Ticket* tickets, std::size_t n) {
    bool queued = false;
    for (std::size_t i = 0; i < n; ++i) {
      const LocalOp* op = mine().pool.find(tickets[i]);
      if (op->state != LocalOp::State::kQueued) continue;
      queued = true;
      if (hub_->rank(op->op.peer).closed) hub_->fail(peer_closed(op->op.peer));
    }
    return queued;
  }

  // The peers that operations wait for and that are to blame.
  std::vector<bool> late_peers(const Ticket* tickets, std::size_t n) {
    std::vector<bool> late(static_cast<std::size_t>(hub_->size));
    std::vector<bool> waiting = late;
    for (std::size_t i = 0; i < n; ++i) {
      const LocalOp* op = mine().pool.find(tickets[i]);
      if (op->state != LocalOp::State::kQueued) continue;
      const auto p = static_cast<std::size_t>(op->op.peer);
      late[p] = true;
      waiting[p] = hub_->ranks[p].waiting[static_cast<std::size_t>(op->op.lane)] > 0;
    }
    return stuck_among(late, waiting);
  }

  std::shared_ptr<Hub> hub_;
  const int rank_;
  const unsigned generation_;
};

void LocalTransport::post(const TransportOp* ops, std::size_t n, Ticket* tickets) {
  if (forked()) throw used_after_fork();
  check_ops(ops, n, rank_, hub_->size, hub_->slot);
  std::unique_lock lock(hub_->mutex);
  throw_if_over(lock);
  for (std::size_t i = 0; i < n; ++i) {
    LocalOp* op = mine().pool.take();
    op->op = ops[i];
    op->owner = rank_;
    op->state = LocalOp::State::kQueued;
    op->wait = nullptr;
    op->orphan = false;
    tickets[i] = TicketPool<LocalOp>::ticket_of(*op);
    hub_->start(lock, op);
    throw_if_over(lock);
  }
}

void LocalTransport::wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) {
  if (forked()) throw used_after_fork();
  std::unique_lock lock(hub_->mutex);
  throw_if_over(lock);
  Wait wait;
  TicketPool<LocalOp>& pool = mine().pool;
  for (std::size_t i = 0; i < n; ++i) {
    LocalOp* op = pool.find(tickets[i]);
    if (op->state == LocalOp::State::kDone) continue;
    op->wait = &wait;
    ++wait.remaining;
  }
  const WaitingMark mark(mine(), n > 0 ? pool.find(tickets[0])->op.lane : Lane{});
  // Nobody reads op->wait any more once this function has thrown: the hub is broken or the rank closed, and its
  // last copy has ended.
  for (;;) {
    throw_if_over(lock);
    if (wait.remaining == 0) break;
    const bool queued = fail_if_peer_closed(tickets, n);
    if (hub_->broken) continue;
    if (!queued || deadline == Deadline::max()) {
      mine().changed.wait(lock);  // what remains is being copied, or there is no deadline
    } else if (Clock::now() < deadline) {
      mine().changed.wait_until(lock, deadline);
    } else {
      hub_->fail(timed_out(rank_, late_peers(tickets, n)));
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    LocalOp* op = pool.find(tickets[i]);
    if (received != nullptr) received[i] = op->length;
    pool.give_back(op);
  }
}

bool LocalTransport::ready(const Ticket* tickets, std::size_t n) {
  if (forked()) throw used_after_fork();
  std::unique_lock lock(hub_->mutex);
  if (hub_->broken || mine().closed) return true;  // a wait would throw at once
  for (std::size_t i = 0; i < n; ++i) {
    if (mine().pool.find(tickets[i])->state != LocalOp::State::kDone) return false;
  }
  return true;
}

void LocalTransport::abort(const Error& why) noexcept {
  if (forked()) return;
  std::unique_lock lock(hub_->mutex);
  if (!mine().closed) hub_->fail(why);
}

void LocalTransport::close() noexcept {
  if (forked()) return;
  std::unique_lock lock(hub_->mutex);
  RankState& state = mine();
  if (state.closed) return;
  state.closing = true;
  state.changed.wait(lock, [&] { return state.copying == 0; });
  for (int peer = 0; peer < hub_->size; ++peer) {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      // After a failure nothing is delivered any more, and the buffers may be gone.
      if (!hub_->broken) keep_sends(hub_->channel(rank_, peer, Lane(lane)));
      Channel& incoming = hub_->channel(peer, rank_, Lane(lane));
      if (incoming.head != nullptr && incoming.head->op.kind == TransportOp::Kind::kRecv)
        incoming.head = nullptr;
    }
  }
  state.closed = true;
  for (RankState& other : hub_->ranks) other.changed.notify_all();
}

// The buffers of this rank go away after close(): what it sent and nobody received yet is set aside.
void LocalTransport::keep_sends(const Channel& outgoing) noexcept {
  for (LocalOp* op = outgoing.head; op != nullptr && op->op.kind == TransportOp::Kind::kSend; op = op->next) {
    op->kept.reset(new (std::nothrow) std::byte[op->op.bytes]);
    if (op->kept == nullptr) {
      hub_->fail(Error(Code::kNoMemory, "rank " + std::to_string(rank_) + " ran out of memory while closing"));
      return;
    }
    if (op->op.bytes > 0) std::memcpy(op->kept.get(), op->op.data, op->op.bytes);
    op->op.data = op->kept.get();
    op->orphan = true;
  }
}

}  // namespace

std::vector<std::unique_ptr<Transport>> make_local(int n, std::size_t slot) {
  if (n < 1) throw Error(Code::kInvalid, "size: " + std::to_string(n) + " ranks cannot form a communicator");
  if (slot == 0) throw Error(Code::kInvalid, "slot: 0 bytes hold no message");
  auto hub = std::make_shared<Hub>(n, slot);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int r = 0; r < n; ++r) transports.push_back(std::make_unique<LocalTransport>(hub, r));
  return transports;
}

}  // namespace gcomm
