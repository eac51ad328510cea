#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "transport/failures.h"
#include "transport/tcp/communicator.h"

namespace gcomm::tcp {
namespace {

// What an event belongs to: a peer's lane, its control connection, or wake_.
constexpr std::uint64_t kSlots = kLaneCount + 1;
constexpr std::uint64_t kWake = ~std::uint64_t{0};

// How long the I/O thread leaves the sockets to waiters after one of them polled. Between two exchanges of a
// busy communicator nobody then wakes it up, and the sockets' buffers hold far more than arrives in the
// meantime.
constexpr std::chrono::milliseconds kStepBack{1};

}  // namespace

// Edge-triggered, for good: no system call is needed to ask for an event, and a lane whose messages nobody
// wants yet does not keep the poller awake.
void Communicator::register_sockets() {
  epoll_ = Fd::epoll();
  wake_ = Fd::event();
  if (!epoll_.valid() || !wake_.valid()) throw Error(Code::kInternal, "epoll: " + errno_text(errno));
  const auto add = [&](const Fd& fd, std::uint32_t events, std::uint64_t id) {
    epoll_event event{};
    event.events = events | EPOLLET;
    event.data.u64 = id;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) != 0) {
      throw Error(Code::kInternal, "epoll_ctl: " + errno_text(errno));
    }
  };
  add(wake_, EPOLLIN, kWake);
  for_each_peer([&](int p, Peer& other) {
    const std::uint64_t first = static_cast<std::uint64_t>(p) * kSlots;
    for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
      tune_connection(other.lanes[lane].connection());
      add(other.lanes[lane].connection(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, first + lane);
    }
    tune_connection(other.control->fd());
    add(other.control->fd(), EPOLLIN | EPOLLRDHUP, first + kLaneCount);
  });
}

// self: the waiting thread that polls, which needs no waking when its own operations complete. True if anything
// happened.
bool Communicator::poll_once(int timeout_ms, const Wait* self) {
  epoll_event events[64];
  const int n = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t id = events[i].data.u64;
    const std::uint32_t seen = events[i].events;
    if (id == kWake) {
      std::uint64_t count = 0;
      (void)!::read(wake_.get(), &count, sizeof count);
      continue;
    }
    const int p = static_cast<int>(id / kSlots);
    if (id % kSlots == kLaneCount) {
      read_control(p);
      continue;
    }
    const Lane lane = Lane(id % kSlots);
    LaneEnd& end = peer(p).lanes[id % kSlots];
    const bool may_send = end.note_events(seen);
    if (end.may_receive()) receive_on(p, lane, self);
    if (may_send && end.has_unsent()) send_on(p, lane, self);
    if ((seen & (EPOLLERR | EPOLLHUP)) != 0) after_lane(p, lane, LaneState::kEnded);
  }
  return n > 0;
}

void Communicator::receive_on(int p, Lane lane, const Wait* self) {
  OpList done;
  const LaneState state = peer(p).lanes[static_cast<std::size_t>(lane)].receive(done);
  complete(done, self);
  after_lane(p, lane, state);
}

void Communicator::send_on(int p, Lane lane, const Wait* self) {
  OpList done;
  const LaneState state = peer(p).lanes[static_cast<std::size_t>(lane)].send(done);
  complete(done, self);
  after_lane(p, lane, state);
}

void Communicator::after_lane(int p, Lane lane, LaneState state) {
  switch (state) {
    case LaneState::kOpen:
      return;
    case LaneState::kTooLong: {
      const TooLong found = peer(p).lanes[static_cast<std::size_t>(lane)].too_long();
      fail(message_too_long(rank, p, lane, found.message, found.posted));
      return;
    }
    case LaneState::kBadFrame:
      fail(Error(Code::kPeerLost,
                 "rank " + std::to_string(p) + " was lost: what came from it on lane " +
                     std::to_string(static_cast<int>(lane)) + " is not a message",
                 p));
      return;
    case LaneState::kEnded:
      // A goodbye or a notice was acknowledged by this host before its sender let the lane end.
      read_control(p);
      if (!control_of(p).peer_said_goodbye()) {
        fail(peer_lost(p));
      } else {
        const Lock lock(mutex_);
        wake_everyone();
      }
      return;
  }
}

void Communicator::read_control(int p) {
  ControlSocket& control = control_of(p);
  const ControlSocket::News news = control.receive();
  if (news.asked && waits_on(*news.asked)) control.answer_waiting();
  if (news.notice) {
    fail(*news.notice);
  } else if (news.ended && !control.peer_said_goodbye()) {
    fail(peer_lost(p));
  } else if (control.peer_said_goodbye()) {
    const Lock lock(mutex_);
    wake_everyone();
  }
}

void Communicator::kick() noexcept {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void Communicator::run_io_thread() {
  Lock lock(mutex_);
  std::uint64_t polls_seen = 0;
  bool step_back = false;
  while (!stop_io_ && !failure_) {
    if (step_back || polls_seen != polls_by_waiters_) {
      step_back = false;
      polls_seen = polls_by_waiters_;
      io_changed_.wait_for(lock, kStepBack);
    } else if (polling_ != nullptr) {
      // One and the same waiter polls all the while: no need to look every millisecond.
      io_asleep_ = true;
      io_changed_.wait(lock);
      step_back = true;
    } else {
      io_polling_ = true;
      lock.unlock();
      poll_once(-1, nullptr);
      lock.lock();
      io_polling_ = false;
      // Who waits came while this thread polled: from now on let the waiter poll.
      step_back = waits_ != nullptr;
      if (step_back) waits_->changed.notify_one();
    }
  }
}

}  // namespace gcomm::tcp
