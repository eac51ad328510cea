// The stream that a connection is by itself.
#pragma once

#include "transport/tcp/stream.h"

namespace gcomm::tcp {

class SocketStream final : public Stream {
 public:
  explicit SocketStream(Fd connection) : Stream(std::move(connection)) {}

  Moved read(const iovec* parts, std::size_t n) override;
  Moved write(const iovec* parts, std::size_t n) override;
  News on_event(std::uint32_t events) override;
};

}  // namespace gcomm::tcp
