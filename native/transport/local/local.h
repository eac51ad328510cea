// Ranks as threads of one process: a message is one copy, made by whichever side comes second.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace gcomm {

inline constexpr std::size_t kLocalDefaultSlot = std::size_t{1} << 20;

// n connected transports, rank by rank. slot in bytes.
std::vector<std::unique_ptr<Transport>> make_local(int n, std::size_t slot = kLocalDefaultSlot);

}  // namespace gcomm
