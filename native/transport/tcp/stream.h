// What a lane's frames go through: bytes in both directions between two ranks, without ever waiting.
//
// A connection stands behind every stream. Its events say when a read or a write is worth trying again, and its
// end is the stream's.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "transport/tcp/socket.h"

namespace gcomm::tcp {

enum class Flow {
  kMoved,
  kAgain,   // nothing for now; an event follows when there is
  kEnded,   // the peer's end of the stream, or an error of the connection
  kBroken,  // what the peer left cannot be
};

struct Moved {
  Flow flow;
  std::size_t bytes = 0;
};

// What an event of the connection means.
struct News {
  bool readable = false;
  bool writable = false;
  bool hangup = false;  // the stream has an end, which only reading finds
};

class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Fd& connection() const noexcept { return connection_; }
  void close() noexcept { connection_.close(); }

  // Both move as much as they can. Where that is less than all, an event follows when there is more to read, or
  // room again. One thread may read while another writes.
  virtual Moved read(const iovec* parts, std::size_t n) = 0;
  virtual Moved write(const iovec* parts, std::size_t n) = 0;

  // events: of epoll.
  virtual News on_event(std::uint32_t events) = 0;

  // Memory that holds bytes under way, of this rank's sending; the system's own buffers are not counted.
  virtual std::size_t buffer_bytes() const noexcept { return 0; }

 protected:
  explicit Stream(Fd connection) : connection_(std::move(connection)) {}

  Fd connection_;
};

}  // namespace gcomm::tcp
