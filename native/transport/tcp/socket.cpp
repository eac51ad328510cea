#include "transport/tcp/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <vector>

#include "transport/tcp/address.h"

namespace gcomm::tcp {
namespace {

// The descriptors that a child closes. Held through fork(), so that a descriptor is never between the system
// and this list when the child is made.
struct OpenFds {
  std::mutex mutex;
  std::vector<bool> is_open;  // by descriptor
};

// Never destroyed: a process may end while its I/O threads run.
OpenFds& open_fds();

void before_fork() { open_fds().mutex.lock(); }

void after_fork_in_parent() { open_fds().mutex.unlock(); }

void after_fork_in_child() {
  OpenFds& fds = open_fds();
  for (std::size_t fd = 0; fd < fds.is_open.size(); ++fd) {
    if (fds.is_open[fd]) ::close(static_cast<int>(fd));
  }
  fds.is_open.assign(fds.is_open.size(), false);
  fds.mutex.unlock();
}

OpenFds& open_fds() {
  static OpenFds& fds = *[] {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return new OpenFds;
  }();
  return fds;
}

}  // namespace

template <typename Call>
Fd Fd::own(Call call) {
  OpenFds& fds = open_fds();
  const std::lock_guard lock(fds.mutex);
  const int fd = call();
  if (fd < 0) return Fd();
  const auto index = static_cast<std::size_t>(fd);
  if (index >= fds.is_open.size()) fds.is_open.resize(index + 1);
  fds.is_open[index] = true;
  return Fd(fd);
}

Fd Fd::stream_socket(int family) {
  return own([&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

Fd Fd::datagram_socket(int family) {
  return own([&] { return ::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

Fd Fd::accept(const Fd& listener) {
  return own([&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
}

Fd Fd::epoll() {
  return own([] { return ::epoll_create1(EPOLL_CLOEXEC); });
}

Fd Fd::event() {
  return own([] { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
}

Fd Fd::memory(const char* name) {
  return own([&] { return ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING); });
}

Fd Fd::receive(const Fd& connection, void* data, std::size_t bytes, long* n) {
  return own([&] {
    iovec part{data, bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one: the system closes what is too much
    *n = ::recvmsg(connection.get(), &message, MSG_CMSG_CLOEXEC);
    const cmsghdr* rights = *n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS ||
        rights->cmsg_len != CMSG_LEN(sizeof(int))) {
      return -1;
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    return fd;
  });
}

void Fd::close() noexcept {
  if (fd_ < 0) return;
  // In a child the descriptor is closed already, and its number may be somebody else's by now.
  if (generation_ == fork_generation()) {
    OpenFds& fds = open_fds();
    const std::lock_guard lock(fds.mutex);
    fds.is_open[static_cast<std::size_t>(fd_)] = false;
    ::close(fd_);
  }
  fd_ = -1;
}

namespace {

// Within a host what is on its way should stay in the processor's caches; between hosts the system finds out
// for itself how much a link can hold.
constexpr int kSameHostSendBuffer = 512 << 10;

bool is_within_host(const Fd& socket) noexcept {
  SocketAddress mine, other;
  mine.length = other.length = sizeof(sockaddr_storage);
  if (::getsockname(socket.get(), mine.get(), &mine.length) != 0 ||
      ::getpeername(socket.get(), other.get(), &other.length) != 0) {
    return false;
  }
  mine.set_port(0);
  other.set_port(0);
  return mine.length == other.length && std::memcmp(mine.get(), other.get(), mine.length) == 0;
}

}  // namespace

void tune_connection(const Fd& socket) noexcept {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that vanished without a word is noticed within about 90 seconds, also while nothing is sent.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 6);
  if (is_within_host(socket)) set(SOL_SOCKET, SO_SNDBUF, kSameHostSendBuffer);
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace gcomm::tcp
