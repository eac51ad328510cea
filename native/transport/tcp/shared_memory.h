// The memory that two ranks of one host share: a ring for each lane and direction.
#pragma once

#include <cstddef>

#include "transport/tcp/ring.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace gcomm::tcp {

// Who made the memory (the higher rank, which connects) and who was given it.
enum class RingEnd { kMaker = 0, kTaker = 1 };

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory() { unmap(); }
  SharedMemory(SharedMemory&& other) noexcept { swap(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    SharedMemory(std::move(other)).swap(*this);
    return *this;
  }

  // slot, size: the communicator's. Invalid where the system has no memory to give.
  static SharedMemory make(std::size_t slot, int size);
  // What a peer made and passed on. Invalid unless it is as large as make()'s and can never shrink, which would
  // end this process at its next access.
  static SharedMemory take(Fd memory, std::size_t slot, int size);

  bool valid() const noexcept { return start_ != nullptr; }
  // To be passed to the peer.
  const Fd& fd() const noexcept { return fd_; }
  // The mapping stays.
  void close_fd() noexcept { fd_.close(); }

  RingPlace ring(Lane lane, RingEnd writer) const noexcept;

 private:
  static SharedMemory map(Fd fd, std::size_t ring);
  void unmap() noexcept;
  void swap(SharedMemory& other) noexcept;

  Fd fd_;
  std::byte* start_ = nullptr;
  std::size_t ring_ = 0;     // bytes of one
  unsigned generation_ = 0;  // of fork(): a child has no mapping
};

}  // namespace gcomm::tcp
