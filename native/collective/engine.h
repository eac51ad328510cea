// Runs the collectives of one communicator, one after the other.
#pragma once

#include "collective/frame.h"

namespace gcomm::collective {

class Engine {
 public:
  // The transport outlives the engine.
  Engine(Transport& transport, codec::Isa isa, ByteCounter& workspace);

  // Any verb but point to point. Throws SharedError where all ranks throw and the communicator goes on; after
  // any other error the engine is not used again.
  void run(Call& call);

  std::size_t plans() const noexcept { return plans_.size(); }

 private:
  void dispatch(Frame& frame);

  Exchange exchange_;
  PlanCache plans_;
  Frame frame_;
};

}  // namespace gcomm::collective
