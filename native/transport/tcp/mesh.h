// The full mesh: each pair of ranks gets one connection a lane and one for control. The higher rank connects,
// the lower one accepts.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/control.h"
#include "transport/tcp/shared_memory.h"
#include "transport/tcp/tcp.h"
#include "transport/transport.h"

namespace gcomm::tcp {

struct PeerSockets {
  std::array<Fd, kLaneCount> lanes;
  std::unique_ptr<ControlSocket> control;
  SharedMemory memory;  // valid where the lanes' bytes go through it
};

struct Mesh {
  std::vector<PeerSockets> peers;  // by rank
};

struct MeshSetup {
  int rank;
  int size;
  std::size_t slot;
  const TcpToken& token;
  const std::vector<std::string>& addresses;
  const Fd& listener;
  const Fd& local_listener;  // invalid: no memory is shared
};

Mesh connect_mesh(const MeshSetup& setup, Deadline deadline);

}  // namespace gcomm::tcp
