// Any runtime's point-to-point messages as a transport: a torch group, mpi4py, somebody's own.
#pragma once

#include <cstddef>
#include <memory>

#include "transport/callback/callbacks.h"
#include "transport/transport.h"

namespace gcomm {

inline constexpr std::size_t kCallbackDefaultSlot = std::size_t{4} << 20;

// Copies the struct and its name; context must live until close. Throws kInvalid for one that cannot work.
//
// What a host cannot say, this transport cannot say either: received lengths are the receives' capacities (a
// message's header knows its length), ready() is false until a wait returned, and an abort reaches the peers
// only if the host's abort function takes it there.
std::unique_ptr<Transport> make_callback(const HostCallbacks& callbacks);

}  // namespace gcomm
