// Bytes in one direction between two processes, through memory that both have mapped.
//
// Each end keeps its own position to itself and only ever publishes it: what the other end publishes is
// checked, so that a peer gone wrong can spoil the bytes, never the memory around them.
//
// An end that can't go on says so in the ring before it looks a last time; the other end, which moves first and
// looks afterwards, then rings a bell (a byte on the connection). Neither can miss the other.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gcomm::tcp {

// In the memory of both. Positions count bytes since the beginning and never go back.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> writer_waits;
  alignas(64) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> reader_waits;
};
static_assert(sizeof(RingControl) == 128);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

struct RingPlace {
  RingControl* control = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;  // a power of two
};

struct RingMoved {
  std::size_t bytes = 0;
  bool sane = true;   // false: the other end's position is impossible
  bool bell = false;  // the other end waits for what was done here
};

class RingWriter {
 public:
  explicit RingWriter(const RingPlace& place) : place_(place) {}

  // Where not all fits, the reader will ring the bell when there is room.
  RingMoved write(const iovec* parts, std::size_t n);
  // Of the ring, as far as it was ever used.
  std::size_t used_bytes() const noexcept;

 private:
  const RingPlace place_;
  std::uint64_t position_ = 0;
};

class RingReader {
 public:
  explicit RingReader(const RingPlace& place) : place_(place) {}

  // Where there is less than the parts hold, the writer will ring the bell when more comes.
  RingMoved read(const iovec* parts, std::size_t n);

 private:
  const RingPlace place_;
  std::uint64_t position_ = 0;
};

}  // namespace gcomm::tcp
