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

// What a transport says of its messages: the longest, and how many to cut a long range into.
struct Messages {
  std::size_t slot_bytes;
  std::uint32_t wanted;
};

// Payload bytes to aim at. Filling and draining a pipeline costs about one chunk each way, so a slow wire wants
// many; a message costs its time whatever its length, so a fast one wants few. No crumbs, and what needs more
// chunks than are wanted is cut evenly. most_added: the step by which a chunk grows.
inline constexpr std::size_t chunk_target(std::uint64_t total_bytes, const Messages& messages,
                                          std::size_t most_added) {
  constexpr std::size_t kSpare = 64;  // of a payload's beginning: length table, fingerprint
  const std::uint64_t most = messages.slot_bytes - kHeaderBytes - kSpare;
  const auto part = [total_bytes](std::uint64_t chunks) { return (total_bytes + chunks - 1) / chunks; };
  const std::uint64_t least = messages.slot_bytes / 8;
  if (part(messages.wanted) <= least) return static_cast<std::size_t>(least);
  const std::uint64_t chunks = std::max<std::uint64_t>(messages.wanted, (total_bytes + most - 1) / most);
  return static_cast<std::size_t>(std::min(part(chunks) + most_added, most));
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
inline constexpr Cut make_cut(std::uint64_t count, std::size_t tile_bytes, const Messages& messages) {
  const std::uint64_t tiles = round_up_to_tile(count) / codec::kTile;
  if (tiles == 0) return Cut{};
  const std::uint64_t fit =
      std::max<std::uint64_t>(1, chunk_target(tiles * tile_bytes, messages, tile_bytes - 1) / tile_bytes);
  const std::uint64_t chunks = (tiles + fit - 1) / fit;
  const std::uint64_t even = (tiles + chunks - 1) / chunks;
  return {count, even * codec::kTile, static_cast<std::uint32_t>((tiles + even - 1) / even)};
}

}  // namespace gcomm::collective
