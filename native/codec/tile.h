#pragma once

#include <cstddef>

namespace gcomm::codec {

// Elements a tile; every cut that the engine makes (shards, chunks) lies on a multiple of it, and an encoded
// range is the concatenation of its encoded tiles.
inline constexpr std::size_t kTile = 4096;

}  // namespace gcomm::codec
