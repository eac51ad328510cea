// What an all_reduce of a list of tensors does on the wire: which tensors go raw, how the others are cut into
// shards, and how pieces of all of them are packed into chunks.
//
// A tensor's path, shards and pieces' boundaries (tiles) depend on that tensor alone, so its bits do not depend
// on what it travels with; only the packing does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "collective/cut.h"
#include "collective/items.h"

namespace gcomm::collective {

// A range of an item (raw part) or of each of its shards (direct part; the last shards may hold less of it, or
// nothing).
struct Piece {
  std::uint32_t item;
  std::uint64_t begin;
  std::uint64_t count;
};

struct Part {
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> first = {0};  // chunk c holds pieces first[c] .. first[c + 1] - 1
  std::size_t payload_bytes = 0;           // the longest payload

  std::uint32_t chunks() const noexcept { return static_cast<std::uint32_t>(first.size() - 1); }
  const Piece* begin(std::uint32_t chunk) const { return pieces.data() + first[chunk]; }
  const Piece* end(std::uint32_t chunk) const { return pieces.data() + first[chunk + 1]; }
};

struct Plan {
  Part raw;
  Part direct;
  std::vector<std::uint64_t> shard;  // by item: elements of a full shard; 0: goes raw
  std::uint64_t encoded_bytes = 0;   // of all items, a rank's input once

  // What the plan is for, beyond the hash that finds it.
  std::uint64_t hash = 0;
  DType dtype = DType::kF32;
  std::string codec;
  std::vector<std::uint64_t> counts;  // by item
  std::vector<Item::Role> roles;
  std::vector<std::size_t> granules;
  std::vector<std::size_t> granule_bytes;

  // The elements that shard `owner` of the piece's item has in the piece.
  std::uint64_t size_in_shard(const Piece& piece, int owner) const noexcept {
    const std::uint64_t full = shard[piece.item];
    const std::uint64_t start = full * static_cast<std::uint64_t>(owner) + piece.begin;
    const std::uint64_t count = counts[piece.item];
    return start >= count ? 0 : std::min(piece.count, count - start);
  }
  bool ends_item(const Piece& piece) const noexcept { return piece.begin + piece.count == shard[piece.item]; }
};

// L of docs/engine.md: ceil(ceil(count / ranks) / granule) granules.
std::uint64_t shard_length(std::uint64_t count, int ranks, std::size_t granule = codec::kTile);

// The raw path is taken for small tensors and where encoding does not pay. tensor_bytes: of the caller's input.
// pays: by the bytes that all ranks together would send either way (those of a format of variable length are
// only a bound, and it does not count then).
bool goes_raw(const codec::BlockCodec& block, int ranks, std::uint64_t tensor_bytes,
              std::uint64_t sent_raw_bytes, bool pays);

// The same for a tensor of a reduction.
bool tensor_goes_raw(const Call& call, std::uint64_t count, int ranks);

// Of what the items of a call are, basis apart.
std::uint64_t plan_hash(const Call& call, const std::vector<Item>& items);

std::unique_ptr<Plan> make_plan(const Call& call, const std::vector<Item>& items, std::uint64_t hash, int ranks,
                                const Messages& messages);

// The plans used last, the least recent one goes first. Not locked.
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  const Plan& get(const Call& call, const std::vector<Item>& items, std::uint64_t hash, int ranks,
                  const Messages& messages);
  std::size_t size() const noexcept { return plans_.size(); }

 private:
  using Order = std::list<std::unique_ptr<Plan>>;
  const std::size_t capacity_;
  Order plans_;  // most recent first
  std::unordered_multimap<std::uint64_t, Order::iterator> by_hash_;
};

}  // namespace gcomm::collective
