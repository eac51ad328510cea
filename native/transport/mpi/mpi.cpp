#include "transport/mpi/mpi.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/failures.h"
#include "transport/fork.h"
#include "transport/mpi/calls.h"
#include "transport/mpi/control.h"
#include "transport/mpi/library.h"
#include "transport/scratch.h"
#include "transport/ticket_pool.h"

namespace gcomm {
namespace {

using mpi::Calls;

constexpr std::chrono::seconds kClosePatience{2};

// MPI offers no wait with a deadline, so a wait asks again and again; less often the longer it lasts, as ranks
// may share a core with those that they wait for.
class Backoff {
 public:
  void reset() noexcept { asked_ = 0; }
  void pause() {
    ++asked_;
    if (asked_ <= kAtOnce) return;
    if (asked_ <= kYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr int kAtOnce = 64;
  static constexpr int kYielding = 4096;
  int asked_ = 0;
};

template <typename Abi>
class MpiTransport final : public Transport {
 public:
  using Handle = typename Abi::Handle;

  // comms: a duplicate for each lane, then one for control.
  MpiTransport(const Calls<Abi>& calls, const std::array<Handle, kLaneCount + 1>& comms, int rank, int size,
               std::size_t slot)
      : calls_(calls),
        comms_(comms),
        rank_(rank),
        size_(size),
        slot_(slot),
        generation_(fork_generation()),
        control_(calls_, comms[kLaneCount], rank, size) {}

  ~MpiTransport() override { close(); }

  const char* name() const noexcept override { return "mpi"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::size_t slot_bytes() const noexcept override { return slot_; }
  std::size_t overhead_bytes() const noexcept override { return 0; }
  bool releases_buffers_on_failure() const noexcept override { return false; }

  void post(const TransportOp* ops, std::size_t n, Ticket* tickets) override;
  void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) override;
  bool ready(const Ticket* tickets, std::size_t n) override;
  void abort(const Error& why) noexcept override;
  void close() noexcept override;

 private:
  struct Record : PoolRecord {
    TransportOp op{};
    Handle request{};
    std::size_t length = 0;
    bool complete = false;
  };

  bool forked() const noexcept { return fork_generation() != generation_; }
  void throw_if_over();
  void find(const Ticket* tickets, Scratch<Record*>& records);
  bool test(Record& record);
  bool set_failure(const Error& why);
  void fail(const Error& why);
  void look_at_control();
  void end_pending(Deadline patience, TransportOp::Kind kind);

  const Calls<Abi> calls_;
  const std::array<Handle, kLaneCount + 1> comms_;
  const int rank_;
  const int size_;
  const std::size_t slot_;
  const unsigned generation_;
  mpi::Control<Abi> control_;

  std::mutex mutex_;
  TicketPool<Record> pool_;
  std::optional<Error> failure_;
  bool closed_ = false;
  std::atomic<bool> over_{false};  // failed or closed
};

template <typename Abi>
void MpiTransport<Abi>::throw_if_over() {
  if (forked()) throw used_after_fork();
  if (!over_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (closed_) throw communicator_closed();
  throw Error(*failure_);
}

template <typename Abi>
void MpiTransport<Abi>::post(const TransportOp* ops, std::size_t n, Ticket* tickets) {
  throw_if_over();
  check_ops(ops, n, rank_, size_, slot_);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    Record* record = pool_.take();
    const TransportOp& op = ops[i];
    const Handle comm = comms_[static_cast<std::size_t>(op.lane)];
    record->op = op;
    record->complete = false;
    record->request = op.kind == TransportOp::Kind::kSend ? calls_.send(op.data, op.bytes, op.peer, comm)
                                                          : calls_.receive(op.data, op.bytes, op.peer, comm);
    tickets[i] = TicketPool<Record>::ticket_of(*record);
  }
}

template <typename Abi>
void MpiTransport<Abi>::find(const Ticket* tickets, Scratch<Record*>& records) {
  const std::lock_guard lock(mutex_);
  for (Record*& record : records) record = pool_.find(*tickets++);
}

// A transfer that fails has lost its peer, whatever else MPI says about it.
template <typename Abi>
bool MpiTransport<Abi>::test(Record& record) {
  if (record.complete) return true;
  try {
    const auto arrived = calls_.test(record.request);
    record.complete = arrived.complete;
    record.length = record.op.kind == TransportOp::Kind::kSend ? record.op.bytes : arrived.bytes;
  } catch (const Error& error) {
    fail(Error(Code::kPeerLost, std::string(peer_lost(record.op.peer).what()) + " (" + error.what() + ")",
               record.op.peer));
  }
  return record.complete;
}

template <typename Abi>
void MpiTransport<Abi>::wait_all(const Ticket* tickets, std::size_t n, std::size_t* received,
                                 Deadline deadline) {
  Scratch<Record*> records(n);
  throw_if_over();
  find(tickets, records);
  Backoff backoff;
  for (std::size_t left = n, before = n;; before = left) {
    left = 0;
    for (Record* record : records) left += test(*record) ? 0 : 1;
    if (left == 0) break;
    look_at_control();
    std::vector<bool> late;
    const bool is_late = Clock::now() >= deadline;
    if (is_late) late.resize(static_cast<std::size_t>(size_));
    for (const Record* record : records) {
      if (record->complete) continue;
      if (control_.peer_is_gone(record->op.peer)) fail(peer_closed(record->op.peer));
      if (is_late) late[static_cast<std::size_t>(record->op.peer)] = true;
    }
    if (is_late) fail(timed_out(rank_, late));
    throw_if_over();
    if (left < before) backoff.reset();
    backoff.pause();
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    if (received != nullptr) received[i] = records[i]->length;
    pool_.give_back(records[i]);
  }
}

template <typename Abi>
bool MpiTransport<Abi>::ready(const Ticket* tickets, std::size_t n) {
  if (forked()) throw used_after_fork();
  if (over_.load(std::memory_order_acquire)) return true;  // a wait would throw at once
  Scratch<Record*> records(n);
  find(tickets, records);
  bool all = true;
  for (Record* record : records) all = test(*record) && all;
  if (!all) look_at_control();
  return all || over_.load(std::memory_order_acquire);
}

// The first failure stays.
template <typename Abi>
bool MpiTransport<Abi>::set_failure(const Error& why) {
  const std::lock_guard lock(mutex_);
  if (failure_ || closed_) return false;
  failure_.emplace(why.code(), clip_failure_text(why.what()), why.peer());
  over_.store(true, std::memory_order_release);
  return true;
}

template <typename Abi>
void MpiTransport<Abi>::fail(const Error& why) {
  if (set_failure(why)) control_.tell(why);
}

template <typename Abi>
void MpiTransport<Abi>::look_at_control() {
  if (const std::optional<Error> notice = control_.poll()) set_failure(*notice);
}

template <typename Abi>
void MpiTransport<Abi>::abort(const Error& why) noexcept {
  if (forked() || calls_.finalized()) return;
  try {
    fail(why);
  } catch (const Error&) {
    // The library that would have told the peers is broken itself.
  }
}

// Sends get the time to leave, receives are cancelled.
template <typename Abi>
void MpiTransport<Abi>::end_pending(Deadline patience, TransportOp::Kind kind) {
  pool_.each_in_use([&](Record& record) {
    if (record.complete || record.op.kind != kind) return;
    if (kind == TransportOp::Kind::kRecv) calls_.cancel(record.request);
    while (!calls_.test(record.request).complete && Clock::now() < patience) std::this_thread::yield();
  });
}

// Duplicates are given back only where every rank is known to be done with them: a message for one that is gone
// would have nowhere to go.
template <typename Abi>
void MpiTransport<Abi>::close() noexcept {
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || forked()) return;
    closed_ = true;
    failed = failure_.has_value();
    over_.store(true, std::memory_order_release);
  }
  if (calls_.finalized()) return;
  try {
    const Deadline patience = Clock::now() + kClosePatience;
    if (!failed) {
      end_pending(patience, TransportOp::Kind::kSend);
      control_.say_goodbye();
      while (!control_.all_said_goodbye() && Clock::now() < patience) {
        if (control_.poll()) break;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    const bool all_done = !failed && control_.all_said_goodbye();
    end_pending(patience, TransportOp::Kind::kRecv);
    control_.end(patience);
    for (const Handle comm : comms_) {
      if (all_done) calls_.free(comm);
    }
  } catch (const Error&) {
    // A library that fails here has lost a peer; there is nothing left to give back.
  }
}

// ---- making
// --------------------------------------------------------------------------------------------------

template <typename Abi>
struct Host {
  Calls<Abi> calls;
  typename Abi::Handle comm;
};

template <typename Abi>
Host<Abi> host_of(const void* comm) {
  Host<Abi> host{Calls<Abi>(mpi::find_library<Abi>()), {}};
  std::memcpy(&host.comm, comm, sizeof host.comm);
  if (host.comm == Abi::handle(Abi::kCommNull)) throw Error(Code::kInvalid, "comm: it is MPI_COMM_NULL");
  if (!host.calls.initialized()) {
    throw Error(Code::kInvalid,
                "comm: MPI is not initialised; call MPI_Init_thread with MPI_THREAD_MULTIPLE first");
  }
  if (host.calls.finalized()) throw Error(Code::kInvalid, "comm: MPI has been finalised");
  if (host.calls.is_inter(host.comm)) {
    throw Error(Code::kInvalid, "comm: an intercommunicator; merge it first (MPI_Intercomm_merge)");
  }
  return host;
}

// What every rank must know of every other before anything is made.
struct Fact {
  std::uint64_t slot;
  std::int32_t thread_level;  // 0 to 3
  std::int32_t reserved;
};

void check_facts(const std::vector<Fact>& facts) {
  static constexpr const char* kLevels[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED",
                                            "MPI_THREAD_MULTIPLE"};
  for (std::size_t r = 0; r < facts.size(); ++r) {
    const std::string who = "rank " + std::to_string(r);
    if (facts[r].thread_level < 3) {
      throw Error(Code::kUnsupported,
                  "comm: " + who + " has initialised MPI with " + kLevels[facts[r].thread_level] +
                      "; gcomm's threads need MPI_THREAD_MULTIPLE (MPI_Init_thread)",
                  static_cast<int>(r));
    }
    if (facts[r].slot != facts[0].slot) {
      throw Error(Code::kMismatch,
                  "config.slot_bytes: rank 0 has " + std::to_string(facts[0].slot) + ", " + who + " " +
                      std::to_string(facts[r].slot),
                  static_cast<int>(r));
    }
  }
}

template <typename Abi>
std::unique_ptr<Transport> make(const void* comm, std::size_t slot) {
  const Host<Abi> host = host_of<Abi>(comm);
  const int rank = host.calls.rank(host.comm);
  const int size = host.calls.size(host.comm);
  const auto& levels = Abi::kThreadLevels;
  const auto level = std::find(std::begin(levels), std::end(levels), host.calls.thread_level());
  const Fact mine{slot, static_cast<std::int32_t>(level == std::end(levels) ? 0 : level - std::begin(levels)),
                  0};
  std::vector<Fact> facts(static_cast<std::size_t>(size));
  host.calls.all_gather(&mine, facts.data(), sizeof mine, host.comm);
  check_facts(facts);
  std::array<typename Abi::Handle, kLaneCount + 1> comms;
  for (auto& made : comms) made = host.calls.duplicate(host.comm);
  return std::make_unique<MpiTransport<Abi>>(host.calls, comms, rank, size, slot);
}

[[noreturn]] void refuse_size(std::size_t bytes) {
  throw Error(Code::kInvalid, "comm_bytes: " + std::to_string(bytes) +
                                  ", expected sizeof(MPI_Comm): 4 (MPICH) or " + std::to_string(sizeof(void*)) +
                                  " (MPI 5)");
}

}  // namespace

int mpi_size(const void* comm, std::size_t bytes) {
  const auto size = [](const auto& host) { return host.calls.size(host.comm); };
  if (bytes == sizeof(mpi::MpichAbi::Handle)) return size(host_of<mpi::MpichAbi>(comm));
  if (bytes == sizeof(mpi::StandardAbi::Handle)) return size(host_of<mpi::StandardAbi>(comm));
  refuse_size(bytes);
}

std::unique_ptr<Transport> make_mpi(const void* comm, std::size_t bytes, std::size_t slot) {
  if (bytes == sizeof(mpi::MpichAbi::Handle)) return make<mpi::MpichAbi>(comm, slot);
  if (bytes == sizeof(mpi::StandardAbi::Handle)) return make<mpi::StandardAbi>(comm, slot);
  refuse_size(bytes);
}

}  // namespace gcomm
