// A lane's memory: receive slots, all of the transport's slot size, and a ring of send buffers sized for the
// call at hand. Both only grow, so a call that has run before allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "transport/transport.h"

namespace gcomm::collective {

// Bytes held by all lanes of a communicator.
using ByteCounter = std::atomic<std::uint64_t>;

class SlotPool {
 public:
  SlotPool(std::size_t slot_bytes, ByteCounter& total) : slot_bytes_(slot_bytes), total_(total) {}

  std::uint8_t* take() {
    if (free_.empty()) grow();
    std::uint8_t* slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(std::uint8_t* slot) noexcept { free_.push_back(slot); }

  // Frees nothing ever: somebody may still write into the slots.
  void leak() noexcept {
    for (AlignedBuffer& slot : slots_) slot.leak();
  }

 private:
  void grow() {
    slots_.emplace_back(slot_bytes_);
    free_.reserve(slots_.size());  // give_back() must not have to allocate
    free_.push_back(slots_.back().data());
    total_ += slot_bytes_;
  }

  const std::size_t slot_bytes_;
  ByteCounter& total_;
  std::vector<AlignedBuffer> slots_;
  std::vector<std::uint8_t*> free_;
};

// Steps of a pipeline take turns: a step's buffers are used again `steps` steps later, once what was sent from
// them has left.
class SendRing {
 public:
  explicit SendRing(ByteCounter& total) : total_(total) {}

  // Nothing may be in flight. capacity: of one buffer, header included.
  void prepare(std::size_t steps, std::size_t per_step, std::size_t capacity);

  // The next step's buffers; the tickets of its last turn are to be awaited, and cleared, first.
  std::vector<Ticket>& next_step() {
    current_ = (current_ + 1) % steps_;
    return tickets_[current_];
  }
  std::vector<Ticket>& tickets() { return tickets_[current_]; }
  // steps_ago is less than the ring's steps.
  std::uint8_t* buffer(std::size_t index, std::size_t steps_ago = 0) {
    const std::size_t step = (current_ + steps_ - steps_ago) % steps_;
    return memory_.data() + (step * per_step_ + index) * capacity_;
  }
  std::size_t capacity() const noexcept { return capacity_; }
  std::vector<std::vector<Ticket>>& all_tickets() { return tickets_; }

  void leak() noexcept { memory_.leak(); }

 private:
  ByteCounter& total_;
  AlignedBuffer memory_;
  std::size_t steps_ = 1;
  std::size_t per_step_ = 0;
  std::size_t capacity_ = 0;
  std::size_t current_ = 0;
  std::vector<std::vector<Ticket>> tickets_ = std::vector<std::vector<Ticket>>(1);
};

}  // namespace gcomm::collective
