// The MPI library that this process has loaded.
#pragma once

#include "transport/mpi/abi.h"

namespace gcomm::mpi {

// Throws kUnsupported where no loaded library has this interface. The library stays loaded.
template <typename Abi>
Functions<Abi> find_library();

extern template Functions<MpichAbi> find_library<MpichAbi>();
extern template Functions<StandardAbi> find_library<StandardAbi>();

}  // namespace gcomm::mpi
