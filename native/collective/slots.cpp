#include "collective/slots.h"

namespace gcomm::collective {

void SendRing::prepare(std::size_t steps, std::size_t per_step, std::size_t capacity) {
  constexpr std::size_t kLine = 64;
  steps_ = steps;
  per_step_ = per_step;
  capacity_ = (capacity + kLine - 1) / kLine * kLine;
  current_ = 0;
  if (tickets_.size() < steps) tickets_.resize(steps);
  const std::size_t needed = steps_ * per_step_ * capacity_;
  if (memory_.size() >= needed) return;
  total_ -= memory_.size();
  memory_ = AlignedBuffer();
  memory_ = AlignedBuffer(needed);
  total_ += needed;
}

}  // namespace gcomm::collective
