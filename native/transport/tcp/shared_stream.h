// A stream through two rings of shared memory. The connection carries a byte where one end waits for the other
// (the bell), and its end is the end of the peer.
#pragma once

#include <atomic>

#include "transport/tcp/ring.h"
#include "transport/tcp/stream.h"

namespace gcomm::tcp {

class SharedStream final : public Stream {
 public:
  SharedStream(Fd connection, const RingPlace& incoming, const RingPlace& outgoing)
      : Stream(std::move(connection)), reader_(incoming), writer_(outgoing) {}

  Moved read(const iovec* parts, std::size_t n) override;
  Moved write(const iovec* parts, std::size_t n) override;
  News on_event(std::uint32_t events) override;
  std::size_t buffer_bytes() const noexcept override { return writer_.used_bytes(); }

 private:
  Moved moved(const RingMoved& by_ring, bool over);
  void ring_bell();
  void hear_bells();

  RingReader reader_;
  RingWriter writer_;
  std::atomic<bool> over_{false};  // the connection has ended
};

}  // namespace gcomm::tcp
