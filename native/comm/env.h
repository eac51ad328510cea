// The one place below the bindings that reads the environment. Every error names the variable.
#pragma once

#include <cstddef>
#include <string>

#include "codec/codec.h"

namespace gcomm::comm {

// GCOMM_ISA, else the best that this machine has.
codec::Isa default_isa();

// GCOMM_SLOT_BYTES, else `most`, less where the receives of many peers would take too much memory. kInvalid
// outside the range that the engine can work with.
std::size_t default_slot_bytes(int ranks, std::size_t most);
// Throws kInvalid, naming `what`, for a slot length outside that range.
std::size_t check_slot_bytes(std::size_t bytes, const std::string& what);

// GCOMM_TIMEOUT in seconds, else 300.
double default_timeout_s();
// Throws kInvalid, naming `what`, for a time that is not positive.
double check_timeout_s(double seconds, const std::string& what);

// GCOMM_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME, else "".
std::string socket_interface();

// GCOMM_TCP_SHM, 0 or 1, else true: whether the TCP transport goes through memory between ranks of one host.
bool tcp_shares_memory();

// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as launchers set them. All must be there.
struct Launch {
  int rank;
  int size;
  std::string master_addr;
  int master_port;
};
Launch launch();

}  // namespace gcomm::comm
