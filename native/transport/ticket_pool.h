// Records of started operations, found again by ticket. A record is reused after it was awaited, so nothing is
// allocated once the pool has grown to the most operations that were ever outstanding at a time. Not locked:
// the owner's mutex covers it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/error.h"
#include "transport/transport.h"

namespace gcomm {

struct PoolRecord {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // tells a ticket that was awaited before from the record's present one
  bool in_use = false;
};

// Record derives from PoolRecord and has stable addresses.
template <typename Record>
class TicketPool {
 public:
  Record* take() {
    if (free_.empty()) {
      // give_back() must not have to allocate.
      if (free_.capacity() <= records_.size()) free_.reserve(2 * records_.size() + 16);
      Record& fresh = records_.emplace_back();
      fresh.index = static_cast<std::uint32_t>(records_.size() - 1);
      free_.push_back(fresh.index);
    }
    Record& record = records_[free_.back()];
    free_.pop_back();
    record.in_use = true;
    ++record.generation;
    return &record;
  }

  void give_back(Record* record) noexcept {
    record->in_use = false;
    free_.push_back(record->index);
  }

  // Those that were started and not awaited.
  template <typename Visit>
  void each_in_use(Visit visit) {
    for (Record& record : records_) {
      if (record.in_use) visit(record);
    }
  }

  static Ticket ticket_of(const Record& record) noexcept {
    return std::uint64_t{record.generation} << 32 | record.index;
  }

  Record* find(Ticket ticket) {
    const auto index = static_cast<std::uint32_t>(ticket);
    if (index >= records_.size() || !records_[index].in_use ||
        records_[index].generation != static_cast<std::uint32_t>(ticket >> 32)) {
      throw Error(Code::kInternal, "a transport ticket was awaited twice or never given out");
    }
    return &records_[index];
  }

 private:
  std::deque<Record> records_;
  std::vector<std::uint32_t> free_;
};

}  // namespace gcomm
