// File descriptors that close in a forked child, and the socket options that gcomm uses.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>

#include "transport/fork.h"

namespace gcomm::tcp {

// Owns a descriptor. After a fork() the child closes its copies at once, before any of its own code runs: a
// child that lives on (a data-loader worker) must not keep a dead parent's connections open.
class Fd {
 public:
  Fd() = default;
  ~Fd() { close(); }
  Fd(Fd&& other) noexcept : fd_(other.fd_), generation_(other.generation_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = other.fd_;
      generation_ = other.generation_;
      other.fd_ = -1;
    }
    return *this;
  }

  // Each of these returns an invalid Fd with errno set if the system refuses. Everything is close-on-exec,
  // sockets are non-blocking.
  static Fd stream_socket(int family);
  static Fd datagram_socket(int family);
  static Fd accept(const Fd& listener);
  static Fd epoll();
  static Fd event();
  // Memory that can be shared and sealed; name: for people who look at the process.
  static Fd memory(const char* name);
  // Receives bytes on a connection as recv() does, into *n what that returned; the result is the descriptor
  // that came with them, if one did.
  static Fd receive(const Fd& connection, void* data, std::size_t bytes, long* n);

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  void close() noexcept;

 private:
  explicit Fd(int fd) : fd_(fd), generation_(fork_generation()) {}
  template <typename Call>
  static Fd own(Call call);

  int fd_ = -1;
  unsigned generation_ = 0;
};

// No delay, keep-alive, buffers: what every connection of a communicator gets.
void tune_connection(const Fd& socket) noexcept;

// "Connection refused" and so on, thread-safe.
std::string errno_text(int error);

}  // namespace gcomm::tcp
