#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include "transport/tcp/communicator.h"

namespace gcomm::tcp {
namespace {

// How long close() stays with peers that do not take what was sent to them.
constexpr std::chrono::seconds kFlushPatience{2};
constexpr std::chrono::milliseconds kGoodbyePatience{1000};
constexpr std::chrono::milliseconds kNoticePatience{300};

// Whether something was sent that the peer's host has not acknowledged and still may.
bool is_in_flight(const Fd& fd) {
  int bytes = 0;
  if (::ioctl(fd.get(), SIOCOUTQ, &bytes) != 0 || bytes == 0) return false;
  // A connection that was reset keeps its count.
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state != TCP_CLOSE;
}

}  // namespace

void Communicator::close() noexcept {
  {
    Lock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    stop_io_ = true;
    wake_everyone();
    io_changed_.wait(lock, [&] { return waits_ == nullptr; });
  }
  if (io_thread_.joinable()) io_thread_.join();
  if (!failed()) {
    flush_sends();
    say_goodbye();
  } else {
    drain(false, kNoticePatience);
  }
  // From here on nobody touches a buffer, whatever is still queued.
  broken_.store(true, std::memory_order_release);
  for_each_peer([](int, Peer& other) {
    for (LaneEnd& lane : other.lanes) {
      lane.quiesce();
      lane.close();
    }
    other.control->close();
  });
  epoll_.close();
  wake_.close();
}

bool Communicator::failed() {
  const Lock lock(mutex_);
  return failure_.has_value();
}

// Sends that did not fit their sockets yet. What arrives meanwhile is thrown away: nobody will ask for it, and
// a connection closed over unread bytes would be reset, with the peer's unread messages in it.
void Communicator::flush_sends() {
  for_each_peer([&](int p, Peer& other) {
    for (int lane = 0; lane < kLaneCount; ++lane) {
      other.lanes[static_cast<std::size_t>(lane)].discard_incoming();
      receive_on(p, Lane(lane), nullptr);
    }
  });
  const Deadline end = Clock::now() + kFlushPatience;
  while (!failed() && Clock::now() < end) {
    bool unsent = false;
    for_each_peer([&](int, Peer& other) {
      if (other.control->peer_said_goodbye()) return;
      for (const LaneEnd& lane : other.lanes) unsent = unsent || lane.has_unsent();
    });
    if (!unsent) return;
    poll_once(10, nullptr);
  }
}

// The goodbye has arrived before any lane ends, so that an end without one always means a lost peer.
void Communicator::say_goodbye() {
  if (failed()) return;
  for_each_peer([](int, Peer& other) { other.control->send_goodbye(); });
  drain(false, kGoodbyePatience);
  for_each_peer([](int, Peer& other) {
    for (const LaneEnd& lane : other.lanes) ::shutdown(lane.connection().get(), SHUT_WR);
    ::shutdown(other.control->fd().get(), SHUT_WR);
  });
  drain(true, kGoodbyePatience);
}

// Waits until the peers' hosts have everything. Where that takes longer the system goes on trying after the
// sockets were closed.
void Communicator::drain(bool lanes, std::chrono::milliseconds patience) {
  const Deadline end = Clock::now() + patience;
  for (;;) {
    bool in_flight = false;
    for_each_peer([&](int, Peer& other) {
      in_flight = in_flight || is_in_flight(other.control->fd());
      for (const LaneEnd& lane : other.lanes)
        in_flight = in_flight || (lanes && is_in_flight(lane.connection()));
    });
    if (!in_flight || Clock::now() >= end) return;
    poll_once(1, nullptr);
  }
}

}  // namespace gcomm::tcp
