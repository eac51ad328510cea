#include "collective/plan.h"

#include <algorithm>

#include "base/hash.h"
#include "collective/cut.h"
#include "collective/payload.h"

namespace gcomm::collective {
namespace {

// Below this, one exchange of everything costs less than two of the encoded parts.
constexpr std::uint64_t kSmallBytes = 32768;

// Fills chunks one after the other with whole granules of the items, in order.
class Packer {
 public:
  Packer(Part& part, std::size_t target) : part_(part), target_(target) {}

  void add(std::uint32_t item, const Coding& coding, std::uint64_t count) {
    coding_ = coding;
    std::uint64_t begin = 0;
    while (begin < count) {
      std::uint64_t take = fitting(count - begin);
      if (take == 0) {
        if (!open_) throw Error(Code::kInternal, "a tile does not fit a slot");
        close();
        continue;
      }
      part_.pieces.push_back({item, begin, take});
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

  // The most elements of `left` that still fit: all, or whole granules.
  std::uint64_t fitting(std::uint64_t left) const {
    if (used_ + cost(left) <= target_) return left;
    const std::size_t granule = coding_.granule();
    const std::size_t granule_bytes = coding_.bound(granule);
    const std::size_t fixed = used_ + coding_.table_bytes(1);
    const std::uint64_t whole = fixed < target_ ? (target_ - fixed) / granule_bytes : 0;
    const std::uint64_t fit = std::min(left, whole * granule);
    return fit == 0 && !open_ ? std::min<std::uint64_t>(left, granule) : fit;
  }

  Part& part_;
  Coding coding_;  // of the item being added
  const std::size_t target_;
  std::size_t used_ = 0;
  bool open_ = false;
};

bool same(const Plan& plan, const Call& call, const std::vector<Item>& items) {
  if (plan.dtype != call.dtype || plan.counts.size() != items.size() || plan.codec != call.codec->text()) {
    return false;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (plan.counts[i] != items[i].count || plan.roles[i] != items[i].role ||
        plan.granules[i] != items[i].coding.granule() ||
        plan.granule_bytes[i] != items[i].coding.bound(plan.granules[i])) {
      return false;
    }
  }
  return true;
}

// What all ranks together send of an item in both phases. By rank and peer: the peer's shard and the own one.
std::uint64_t encoded_bytes(const Coding& coding, std::uint64_t count, int ranks) {
  const std::uint64_t length = shard_length(count, ranks, coding.granule());
  std::uint64_t bytes = 0;
  for (std::uint64_t start = 0; start < count; start += length) {
    bytes += coding.bound(std::min(length, count - start));
  }
  return bytes;
}

}  // namespace

std::uint64_t shard_length(std::uint64_t count, int ranks, std::size_t granule) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t part = count / n + (count % n != 0 ? 1 : 0);
  return (part + granule - 1) / granule * granule;
}

bool goes_raw(const codec::BlockCodec& block, int ranks, std::uint64_t tensor_bytes,
              std::uint64_t sent_raw_bytes, bool pays) {
  const std::int64_t min_bytes = block.spec().min_bytes;
  if (min_bytes == 0) return false;
  if (ranks == 1 || (block.fixed_length() && !pays)) return true;
  if (min_bytes > 0) return tensor_bytes < static_cast<std::uint64_t>(min_bytes);
  return sent_raw_bytes <= kSmallBytes;
}

bool tensor_goes_raw(const Call& call, std::uint64_t count, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const std::uint64_t bytes = Coding(nullptr, call.dtype).bound(count);
  // By rank and peer: everything once if raw. With as many bytes either way the direct path is the better one:
  // each element is added up on one rank instead of on all.
  const bool pays = 2 * encoded_bytes(Coding(&call.block(), call.dtype), count, ranks) <= n * bytes;
  return goes_raw(call.block(), ranks, bytes, bytes * (n - 1), pays);
}

std::uint64_t plan_hash(const Call& call, const std::vector<Item>& items) {
  Fnv64 hash;
  hash.number(static_cast<std::uint64_t>(call.dtype)).text(call.codec->text());
  for (const Item& item : items) {
    hash.number(item.count).number(static_cast<std::uint64_t>(item.role)).number(item.coding.granule());
  }
  return hash.value();
}

std::unique_ptr<Plan> make_plan(const Call& call, const std::vector<Item>& items, std::uint64_t hash, int ranks,
                                const Messages& messages) {
  auto plan = std::make_unique<Plan>();
  plan->hash = hash;
  plan->dtype = call.dtype;
  plan->codec = call.codec->text();
  const Coding raw(nullptr, call.dtype);
  std::uint64_t raw_total = 0;
  std::uint64_t shard_total = 0;
  std::size_t granule_bytes = 0;  // the most that one takes
  for (const Item& item : items) {
    const bool is_raw = !item.never_raw && tensor_goes_raw(call, item.count, ranks);
    const std::uint64_t length = shard_length(item.count, ranks, item.coding.granule());
    plan->counts.push_back(item.count);
    plan->roles.push_back(item.role);
    plan->granules.push_back(item.coding.granule());
    plan->granule_bytes.push_back(item.coding.bound(item.coding.granule()));
    granule_bytes = std::max(granule_bytes, plan->granule_bytes.back());
    plan->shard.push_back(is_raw ? 0 : length);
    plan->encoded_bytes += is_raw ? raw.bound(item.count) : encoded_bytes(item.coding, item.count, ranks);
    (is_raw ? raw_total : shard_total) += is_raw ? raw.bound(item.count) : item.coding.bound(length);
  }
  Packer raw_packer(plan->raw, chunk_target(raw_total, messages, raw.bound(raw.granule())));
  Packer direct_packer(plan->direct, chunk_target(shard_total, messages, granule_bytes));
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    if (plan->shard[i] == 0) {
      raw_packer.add(index, raw, plan->counts[i]);
    } else {
      direct_packer.add(index, items[i].coding, plan->shard[i]);
    }
  }
  raw_packer.close();
  direct_packer.close();
  return plan;
}

const Plan& PlanCache::get(const Call& call, const std::vector<Item>& items, std::uint64_t hash, int ranks,
                           const Messages& messages) {
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (!same(**at->second, call, items)) continue;
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
  plans_.push_front(make_plan(call, items, hash, ranks, messages));
  by_hash_.emplace(hash, plans_.begin());
  return *plans_.front();
}

}  // namespace gcomm::collective
