#include "transport/tcp/shared_stream.h"

#include <sys/epoll.h>

#include <cerrno>

namespace gcomm::tcp {

// What lies in the ring when the connection has ended is still read: its writer wrote it before.
Moved SharedStream::read(const iovec* parts, std::size_t n) {
  const bool over = over_.load(std::memory_order_acquire);
  return moved(reader_.read(parts, n), over);
}

Moved SharedStream::write(const iovec* parts, std::size_t n) {
  if (over_.load(std::memory_order_acquire)) return {Flow::kEnded};
  return moved(writer_.write(parts, n), false);
}

Moved SharedStream::moved(const RingMoved& by_ring, bool over) {
  if (by_ring.bell) ring_bell();
  if (!by_ring.sane) return {Flow::kBroken};
  if (by_ring.bytes > 0) return {Flow::kMoved, by_ring.bytes};
  return {over ? Flow::kEnded : Flow::kAgain};
}

// Where the connection is full of bells, or has ended, the peer has an event to come already.
void SharedStream::ring_bell() {
  const char bell = 1;
  while (::send(connection_.get(), &bell, sizeof bell, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void SharedStream::hear_bells() {
  char bells[64];
  for (;;) {
    const long n = ::recv(connection_.get(), bells, sizeof bells, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || (n < 0 && errno != EAGAIN)) over_.store(true, std::memory_order_release);
    if (n < static_cast<long>(sizeof bells)) return;
  }
}

// A bell does not say which of the rings it means.
News SharedStream::on_event(std::uint32_t events) {
  const bool hangup = (events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0;
  if (hangup) over_.store(true, std::memory_order_release);
  const bool bell = (events & EPOLLIN) != 0;
  if (bell) hear_bells();
  return {bell || hangup, bell, hangup};
}

}  // namespace gcomm::tcp
