// How ranges are cut into chunks: from sizes, the number of ranks and the slot alone, so that all ranks cut
// alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "collective/header.h"

namespace gcomm::collective {

// A slot must hold a header, a tile of the widest dtype, and what may come before it in the payload.
inline constexpr std::size_t kMinSlotBytes = std::size_t{128} << 10;
inline constexpr std::size_t kMaxSlotBytes = std::size_t{1} << 30;

inline constexpr std::uint64_t round_up_to_tile(std::uint64_t count) {
  return (count + codec::kTile - 1) / codec::kTile * codec::kTile;
}

// Payload bytes to aim at. Filling and draining a pipeline costs about one chunk each way, so a slow wire wants
// many; a message costs some microseconds whatever its length, so a fast one wants few. Thirty-two, but no
// crumbs.
inline constexpr std::size_t chunk_target(std::uint64_t total_bytes, std::size_t slot_bytes) {
  constexpr std::uint64_t kChunks = 32;
  constexpr std::size_t kSpare = 64;  // of a payload's beginning: length table, fingerprint
  const std::size_t most = slot_bytes - kHeaderBytes - kSpare;
  return static_cast<std::size_t>(
      std::clamp<std::uint64_t>((total_bytes + kChunks - 1) / kChunks, slot_bytes / 8, most));
}

// One range, cut evenly at multiples of a tile. There is always a chunk 0, maybe empty.
struct Cut {
  std::uint64_t count = 0;
  std::uint64_t step = codec::kTile;
  std::uint32_t chunks = 1;

  std::uint64_t begin(std::uint32_t chunk) const noexcept { return std::min(chunk * step, count); }
  std::uint64_t size(std::uint32_t chunk) const noexcept { return begin(chunk + 1) - begin(chunk); }
};

// tile_bytes: the most that a tile takes in a payload.
inline constexpr Cut make_cut(std::uint64_t count, std::size_t tile_bytes, std::size_t slot_bytes) {
  const std::uint64_t tiles = round_up_to_tile(count) / codec::kTile;
  if (tiles == 0) return Cut{};
  const std::uint64_t fit =
      std::max<std::uint64_t>(1, chunk_target(tiles * tile_bytes, slot_bytes) / tile_bytes);
  const std::uint64_t chunks = (tiles + fit - 1) / fit;
  const std::uint64_t even = (tiles + chunks - 1) / chunks;
  return {count, even * codec::kTile, static_cast<std::uint32_t>((tiles + even - 1) / even)};
}

}  // namespace gcomm::collective
