#include "transport/tcp/socket_stream.h"

#include <sys/epoll.h>

#include <cerrno>

namespace gcomm::tcp {

Moved SocketStream::read(const iovec* parts, std::size_t n) {
  for (;;) {
    const long moved = ::readv(connection_.get(), parts, static_cast<int>(n));
    if (moved > 0) return {Flow::kMoved, static_cast<std::size_t>(moved)};
    if (moved < 0 && errno == EINTR) continue;
    return {moved < 0 && errno == EAGAIN ? Flow::kAgain : Flow::kEnded};
  }
}

Moved SocketStream::write(const iovec* parts, std::size_t n) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = n;
  for (;;) {
    const long moved = ::sendmsg(connection_.get(), &message, MSG_NOSIGNAL);
    if (moved >= 0) return {Flow::kMoved, static_cast<std::size_t>(moved)};
    if (errno == EINTR) continue;
    return {errno == EAGAIN ? Flow::kAgain : Flow::kEnded};
  }
}

News SocketStream::on_event(std::uint32_t events) {
  const bool hangup = (events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0;
  return {hangup || (events & EPOLLIN) != 0, (events & EPOLLOUT) != 0, hangup};
}

}  // namespace gcomm::tcp
