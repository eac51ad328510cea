// MPI's point-to-point messages as a transport, on duplicates of the host's communicator.
#pragma once

#include <cstddef>
#include <memory>

#include "transport/transport.h"

namespace gcomm {

inline constexpr std::size_t kMpiDefaultSlot = std::size_t{1} << 20;

// The host's MPI_Comm lies at `comm`; `bytes` is the size of one, which tells the library's binary interface.
// Both throw kInvalid where there is no MPI_Comm, MPI is not initialised or has ended, or the communicator is
// an intercommunicator, and kUnsupported where no such library is loaded or it was initialised with less than
// MPI_THREAD_MULTIPLE.
int mpi_size(const void* comm, std::size_t bytes);

// Collective over the communicator; MPI's own calls for that know no deadline. Throws kMismatch on every rank
// where slots differ.
std::unique_ptr<Transport> make_mpi(const void* comm, std::size_t bytes, std::size_t slot);

}  // namespace gcomm
