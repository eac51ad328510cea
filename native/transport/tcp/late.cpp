#include "transport/failures.h"
#include "transport/tcp/communicator.h"

namespace gcomm::tcp {
namespace {

// How long a late peer has to answer that it waits for somebody itself, or a peer that knows the reason to tell
// it.
constexpr std::chrono::milliseconds kPatience{100};

}  // namespace

// This process may have been stopped until after the deadline: what lies in the sockets by now tells who was
// late. It is not for the poller to read: it may have been stopped, too, between an event and the reading.
void Communicator::look_again(Lock& lock, const OpRefs& ops) {
  lock.unlock();
  for_each_peer([&](int p, Peer&) { read_control(p); });
  receive_now(ops);
  lock.lock();
}

// All late ones are asked first whether they wait themselves.
void Communicator::fail_late(Lock& lock, Wait& wait, const OpRefs& ops) {
  const std::vector<bool> late = late_peers(lock, ops);
  lock.unlock();
  for_each_peer([&](int p, Peer& other) {
    if (late[static_cast<std::size_t>(p)]) other.control->ask_if_waiting(wait.lane);
  });
  lock.lock();
  const Deadline end = Clock::now() + kPatience;
  while (goes_on(lock, wait) && Clock::now() < end) {
    fail_if_peer_closed(lock, ops);
    if (!failure_) wait_turn(lock, wait, end);
  }
  if (!goes_on(lock, wait)) return;
  std::vector<bool> waiting(late.size());
  for_each_peer(
      [&](int p, Peer& other) { waiting[static_cast<std::size_t>(p)] = other.control->peer_waits_itself(); });
  const Error why = timed_out(rank, stuck_among(late_peers(lock, ops), waiting));
  lock.unlock();
  fail(why);
  lock.lock();
}

std::vector<bool> Communicator::late_peers(const Lock&, const OpRefs& ops) const {
  std::vector<bool> late(static_cast<std::size_t>(size));
  for (const TcpOp* op : ops) {
    if (!op->complete.load(std::memory_order_relaxed)) late[static_cast<std::size_t>(op->op.peer)] = true;
  }
  return late;
}

bool Communicator::waits_on(Lane lane) {
  const Lock lock(mutex_);
  for (const Wait* wait = waits_; wait != nullptr; wait = wait->next) {
    if (wait->lane == lane && wait->remaining > 0) return true;
  }
  return false;
}

}  // namespace gcomm::tcp
