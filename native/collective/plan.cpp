#include "collective/plan.h"

#include <algorithm>

#include "collective/cut.h"
#include "collective/payload.h"

namespace gcomm::collective {
namespace {

// Below this, one exchange of everything costs less than two of the encoded parts.
constexpr std::uint64_t kSmallBytes = 32768;

// Fills chunks one after the other with whole tiles of the ranges, in order.
class Packer {
 public:
  Packer(Part& part, const Coding& coding, std::size_t target)
      : part_(part), coding_(coding), target_(target) {}

  void add(std::uint32_t tensor, std::uint64_t count) {
    std::uint64_t begin = 0;
    while (begin < count) {
      std::uint64_t take = fitting(count - begin);
      if (take == 0) {
        if (!open_) throw Error(Code::kInternal, "a tile does not fit a slot");
        close();
        continue;
      }
      part_.pieces.push_back({tensor, begin, take});
      used_ += cost(take);
      open_ = true;
      begin += take;
    }
  }

  void close() {
    if (!open_) return;
    part_.first.push_back(static_cast<std::uint32_t>(part_.pieces.size()));
    part_.payload_bytes = std::max(part_.payload_bytes, used_);
    used_ = 0;
    open_ = false;
  }

 private:
  std::size_t cost(std::uint64_t count) const { return coding_.bound(count) + coding_.table_bytes(1); }

  // The most elements of `left` that still fit: all, or whole tiles.
  std::uint64_t fitting(std::uint64_t left) const {
    if (used_ + cost(left) <= target_) return left;
    const std::size_t tile = coding_.bound(codec::kTile);
    const std::size_t fixed = used_ + coding_.table_bytes(1);
    const std::uint64_t tiles = fixed < target_ ? (target_ - fixed) / tile : 0;
    const std::uint64_t fit = std::min(left, tiles * codec::kTile);
    return fit == 0 && !open_ ? std::min<std::uint64_t>(left, codec::kTile) : fit;
  }

  Part& part_;
  const Coding& coding_;
  const std::size_t target_;
  std::size_t used_ = 0;
  bool open_ = false;
};

bool same(const Plan& plan, const Call& call) {
  if (plan.dtype != call.dtype || plan.counts.size() != call.tensor_count || plan.codec != call.codec->text()) {
    return false;
  }
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    if (plan.counts[i] != call.tensors[i].count) return false;
  }
  return true;
}

}  // namespace

std::uint64_t shard_length(std::uint64_t count, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  return round_up_to_tile(count / n + (count % n != 0 ? 1 : 0));
}

bool goes_raw(const codec::BlockCodec& block, int ranks, std::uint64_t tensor_bytes,
              std::uint64_t sent_raw_bytes, std::uint64_t raw_wire, std::uint64_t encoded_wire) {
  const std::int64_t min_bytes = block.spec().min_bytes;
  if (min_bytes == 0) return false;
  if (ranks == 1 || (block.fixed_length() && raw_wire <= encoded_wire)) return true;
  if (min_bytes > 0) return tensor_bytes < static_cast<std::uint64_t>(min_bytes);
  return sent_raw_bytes <= kSmallBytes;
}

std::unique_ptr<Plan> make_plan(const Call& call, std::uint64_t hash, int ranks, std::size_t slot_bytes) {
  auto plan = std::make_unique<Plan>();
  plan->hash = hash;
  plan->dtype = call.dtype;
  plan->codec = call.codec->text();
  const Coding raw(nullptr, call.dtype);
  const Coding coded(&call.block(), call.dtype);
  const auto n = static_cast<std::uint64_t>(ranks);
  std::uint64_t raw_total = 0;
  std::uint64_t shard_total = 0;
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    const std::uint64_t count = call.tensors[i].count;
    const std::uint64_t length = shard_length(count, ranks);
    const std::uint64_t bytes = raw.bound(count);
    std::uint64_t encoded = 0;
    for (std::uint64_t start = 0; start < count; start += length) {
      encoded += coded.bound(std::min(length, count - start));
    }
    // By rank and peer: everything once if raw, the peer's shard and the own one if encoded.
    const bool is_raw = goes_raw(call.block(), ranks, bytes, bytes * (n - 1), n * bytes, 2 * encoded);
    plan->counts.push_back(count);
    plan->shard.push_back(is_raw ? 0 : length);
    plan->encoded_bytes += is_raw ? bytes : encoded;
    (is_raw ? raw_total : shard_total) += is_raw ? bytes : coded.bound(length);
  }
  Packer raw_packer(plan->raw, raw, chunk_target(raw_total, slot_bytes));
  Packer direct_packer(plan->direct, coded, chunk_target(shard_total, slot_bytes));
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    const auto tensor = static_cast<std::uint32_t>(i);
    if (plan->shard[i] == 0) {
      raw_packer.add(tensor, plan->counts[i]);
    } else {
      direct_packer.add(tensor, plan->shard[i]);
    }
  }
  raw_packer.close();
  direct_packer.close();
  return plan;
}

const Plan& PlanCache::get(const Call& call, std::uint64_t hash, int ranks, std::size_t slot_bytes) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (!same(**at->second, call)) continue;
    plans_.splice(plans_.begin(), plans_, at->second);
    return *plans_.front();
  }
  if (plans_.size() >= capacity_) {
    const auto last = std::prev(plans_.end());
    const auto [from, to] = by_hash_.equal_range((*last)->hash);
    for (auto at = from; at != to; ++at) {
      if (at->second == last) {
        by_hash_.erase(at);
        break;
      }
    }
    plans_.pop_back();
  }
  plans_.push_front(make_plan(call, hash, ranks, slot_bytes));
  by_hash_.emplace(hash, plans_.begin());
  return *plans_.front();
}

}  // namespace gcomm::collective
