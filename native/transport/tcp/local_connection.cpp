#include "transport/tcp/local_connection.h"

#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace gcomm::tcp {
namespace {

// A name that begins with a zero byte is abstract: no file, gone with its socket.
struct Name {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Name(const std::string& tcp_address) {
    const std::string text = "gcomm-" + tcp_address;
    address.sun_family = AF_UNIX;
    const std::size_t bytes = text.copy(address.sun_path + 1, sizeof address.sun_path - 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace

Fd listen_locally(const std::string& address) {
  const Name name(address);
  Fd fd = Fd::stream_socket(AF_UNIX);
  if (!fd.valid() || ::bind(fd.get(), name.get(), name.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return Fd();
  }
  return fd;
}

Fd connect_locally(const std::string& address) {
  const Name name(address);
  Fd fd = Fd::stream_socket(AF_UNIX);
  if (fd.valid() && ::connect(fd.get(), name.get(), name.length) != 0) {
    const int error = errno;
    fd.close();
    errno = error;
  }
  return fd;
}

bool is_same_user(const Fd& connection) {
  ucred other{};
  socklen_t length = sizeof other;
  return ::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
         other.uid == ::geteuid();
}

bool send_with_fd(const Fd& connection, const void* data, std::size_t bytes, const Fd& passed) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = passed.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  return ::sendmsg(connection.get(), &message, MSG_NOSIGNAL) == static_cast<long>(bytes);
}

}  // namespace gcomm::tcp
