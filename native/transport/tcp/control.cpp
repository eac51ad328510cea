#include "transport/tcp/control.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace gcomm::tcp {

// At most one goodbye and one notice go out in a connection's life, and a few questions with their answers, so
// they always fit the socket's buffer. Where one does not (the peer is gone), nobody is left to tell.
void ControlSocket::send(const Header& header, const char* text) noexcept {
  const std::lock_guard lock(send_mutex_);
  if (!fd_.valid()) return;
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof header},
                    {const_cast<char*>(text), header.text_bytes}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  while (::sendmsg(fd_.get(), &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void ControlSocket::send_goodbye() noexcept { send(Header{kMagic, kGoodbye, 0, 0, -1}, ""); }

void ControlSocket::send_notice(const Error& why) noexcept {
  const auto bytes = static_cast<std::uint16_t>(std::strlen(why.what()));
  send(Header{kMagic, kNotice, static_cast<std::uint8_t>(why.code()), bytes, why.peer()}, why.what());
}

void ControlSocket::ask_if_waiting(Lane lane) noexcept {
  waits_.store(false, std::memory_order_release);
  send(Header{kMagic, kQuestion, static_cast<std::uint8_t>(lane), 0, -1}, "");
}

void ControlSocket::answer_waiting() noexcept { send(Header{kMagic, kWaiting, 0, 0, -1}, ""); }

ControlSocket::News ControlSocket::receive() {
  const std::lock_guard lock(receive_mutex_);
  News news;
  news.ended = !read(news.asked);
  news.notice = notice_;
  return news;
}

// Whether the connection goes on.
bool ControlSocket::read(std::optional<Lane>& asked) {
  for (;;) {
    const long n = ::recv(fd_.get(), buffer_.data() + held_, buffer_.size() - held_, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    held_ += static_cast<std::size_t>(n);
    while (held_ >= sizeof(Header)) {
      Header header;
      std::memcpy(&header, buffer_.data(), sizeof header);
      const std::size_t whole = sizeof header + header.text_bytes;
      const bool is_failure = header.code > 0 && header.code <= static_cast<int>(Code::kNonFinite);
      const bool is_nonsense = header.magic != kMagic || whole > buffer_.size() ||
                               (header.kind == kNotice && !is_failure) ||
                               (header.kind == kQuestion && header.code >= kLaneCount);
      if (is_nonsense) return false;
      if (held_ < whole) break;
      if (header.kind == kGoodbye) goodbye_.store(true, std::memory_order_release);
      if (header.kind == kWaiting) waits_.store(true, std::memory_order_release);
      if (header.kind == kQuestion) asked = Lane(header.code);
      if (header.kind == kNotice && !notice_) {
        notice_.emplace(static_cast<Code>(header.code),
                        std::string(buffer_.data() + sizeof header, header.text_bytes), header.culprit);
      }
      held_ -= whole;
      std::memmove(buffer_.data(), buffer_.data() + whole, held_);
    }
  }
}

}  // namespace gcomm::tcp
