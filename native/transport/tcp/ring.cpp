#include "transport/tcp/ring.h"

#include <algorithm>
#include <cstring>

namespace gcomm::tcp {
namespace {

// Parts as one run of bytes.
class Cursor {
 public:
  Cursor(const iovec* parts, std::size_t n) : part_(parts), end_(parts + n) { skip_empty(); }

  bool done() const noexcept { return part_ == end_; }
  // The longest piece that lies in one part, at most `most` bytes.
  std::size_t piece(std::size_t most) const noexcept { return std::min(most, part_->iov_len - offset_); }
  std::byte* data() const noexcept { return static_cast<std::byte*>(part_->iov_base) + offset_; }
  void advance(std::size_t bytes) noexcept {
    offset_ += bytes;
    if (offset_ == part_->iov_len) {
      ++part_;
      offset_ = 0;
      skip_empty();
    }
  }

 private:
  void skip_empty() noexcept {
    while (part_ != end_ && part_->iov_len == 0) ++part_;
  }

  const iovec* part_;
  const iovec* end_;
  std::size_t offset_ = 0;
};

// So that the other end can work on what was moved while the rest follows.
std::size_t step(const RingPlace& place) { return place.capacity / 4; }

// Copies at most `most` bytes between the parts and the ring from `position` on.
template <typename Copy>
std::size_t move_some(Cursor& parts, const RingPlace& place, std::uint64_t position, std::size_t most,
                      Copy copy) {
  std::size_t moved = 0;
  while (moved < most && !parts.done()) {
    const std::size_t at = (position + moved) & (place.capacity - 1);
    const std::size_t bytes = parts.piece(std::min(most - moved, place.capacity - at));
    copy(parts.data(), place.data + at, bytes);
    parts.advance(bytes);
    moved += bytes;
  }
  return moved;
}

// Positions and announcements are all in one order (seq_cst): of an end that moves and then looks whether the
// other waits, and one that announces that it waits and then looks whether something moved, one sees the
// other's word.

// Whether the other end waits; it is told once.
bool take(std::atomic<std::uint32_t>& waits) { return waits.load() != 0 && waits.exchange(0) != 0; }

void announce(std::atomic<std::uint32_t>& waits) { waits.store(1); }

}  // namespace

RingMoved RingWriter::write(const iovec* parts, std::size_t n) {
  Cursor rest(parts, n);
  RingMoved result;
  bool announced = false;
  while (!rest.done()) {
    const std::uint64_t filled = position_ - place_.control->read.load();
    if (filled > place_.capacity) {
      result.sane = false;
      break;
    }
    if (filled == place_.capacity) {
      if (announced) break;
      announce(place_.control->writer_waits);
      announced = true;
      continue;
    }
    const std::size_t most = std::min<std::size_t>(place_.capacity - filled, step(place_));
    const std::size_t moved = move_some(
        rest, place_, position_, most,
        [](const std::byte* part, std::byte* ring, std::size_t bytes) { std::memcpy(ring, part, bytes); });
    position_ += moved;
    place_.control->written.store(position_);
    result.bytes += moved;
    announced = false;
  }
  if (result.bytes > 0) result.bell = take(place_.control->reader_waits);
  return result;
}

std::size_t RingWriter::used_bytes() const noexcept {
  return std::min<std::uint64_t>(place_.capacity, place_.control->written.load(std::memory_order_relaxed));
}

RingMoved RingReader::read(const iovec* parts, std::size_t n) {
  Cursor rest(parts, n);
  RingMoved result;
  bool announced = false;
  std::uint64_t filled = 0;
  while (!rest.done()) {
    filled = place_.control->written.load() - position_;
    if (filled > place_.capacity) {
      result.sane = false;
      break;
    }
    if (filled == 0) {
      if (announced) break;
      announce(place_.control->reader_waits);
      announced = true;
      continue;
    }
    const std::size_t most = std::min<std::size_t>(filled, step(place_));
    const std::size_t moved = move_some(
        rest, place_, position_, most,
        [](std::byte* part, const std::byte* ring, std::size_t bytes) { std::memcpy(part, ring, bytes); });
    position_ += moved;
    filled -= moved;
    place_.control->read.store(position_);
    result.bytes += moved;
    announced = false;
  }
  // A writer that waits is called when it can write for a while.
  if (result.bytes > 0 && filled <= place_.capacity / 2) result.bell = take(place_.control->writer_waits);
  return result;
}

}  // namespace gcomm::tcp
