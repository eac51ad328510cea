// send and recv: chunks on one lane, one way; acknowledgements on another, the other way. A send is over when
// its receiver has said so, and both sides hear of a disagreement.
#pragma once

#include "collective/exchange.h"
#include "collective/payload.h"

namespace gcomm::collective {

// One direction to or from one peer. Calls run one after the other.
class PointToPoint {
 public:
  // sending: from this rank to peer, else from peer to this rank. The transport outlives it.
  PointToPoint(Transport& transport, int peer, bool sending, ByteCounter& workspace);

  // As Engine::run().
  void run(Call& call);

  // Between calls: nothing is posted on either lane.
  bool clean() const noexcept { return exchange_.clean(); }

 private:
  void begin(const Coding& coding, std::uint64_t messages);
  void send(Call& call);
  void receive(Call& call);
  // One header from here, or from there. nonfinite: the sender's input holds a NaN or an Inf.
  void send_header(Kind kind, std::uint8_t phase, bool nonfinite);
  bool receive_header(Kind kind, std::uint8_t phase);

  Exchange exchange_;
  const int peer_;
};

}  // namespace gcomm::collective
