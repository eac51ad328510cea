#include "transport/callback/callback.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/failures.h"
#include "transport/fork.h"
#include "transport/scratch.h"
#include "transport/ticket_pool.h"

namespace gcomm {
namespace {

constexpr std::chrono::seconds kClosePatience{5};

struct HostRecord : PoolRecord {
  std::uint64_t host_ticket = 0;
  int peer = 0;
  std::size_t bytes = 0;
};

class CallbackTransport final : public Transport {
 public:
  explicit CallbackTransport(const HostCallbacks& callbacks)
      : host_(callbacks), name_(callbacks.name), generation_(fork_generation()) {}

  ~CallbackTransport() override { close(); }

  const char* name() const noexcept override { return name_.c_str(); }
  int rank() const noexcept override { return host_.rank; }
  int size() const noexcept override { return host_.size; }
  std::size_t slot_bytes() const noexcept override {
    return host_.slot_bytes == 0 ? kCallbackDefaultSlot : host_.slot_bytes;
  }
  // A host's calls cost much more than a socket's. Three keep one message on its way while others are worked
  // on.
  std::uint32_t wanted_messages() const noexcept override { return 3; }
  std::size_t overhead_bytes() const noexcept override { return host_.overhead_bytes; }
  bool releases_buffers_on_failure() const noexcept override { return false; }

  void post(const TransportOp* ops, std::size_t n, Ticket* tickets) override;
  void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) override;
  bool ready(const Ticket* tickets, std::size_t n) override;
  void abort(const Error& why) noexcept override;
  void close() noexcept override;

 private:
  // Keeps close() from being the host's last call while another is still inside the host.
  class InHost {
   public:
    explicit InHost(CallbackTransport& transport) : transport_(transport) {
      const std::lock_guard lock(transport_.mutex_);
      if (transport_.closed_) throw communicator_closed();
      if (transport_.failure_) throw Error(*transport_.failure_);
      ++transport_.inside_;
    }
    ~InHost() {
      const std::lock_guard lock(transport_.mutex_);
      if (--transport_.inside_ == 0) transport_.left_.notify_all();
    }
    InHost(const InHost&) = delete;
    InHost& operator=(const InHost&) = delete;

   private:
    CallbackTransport& transport_;
  };

  bool forked() const noexcept { return fork_generation() != generation_; }
  [[noreturn]] void fail(const Error& why);
  Error translate(const char* call, std::int32_t result, int peer, const std::string& remark);

  const HostCallbacks host_;
  const std::string name_;
  const unsigned generation_;

  std::mutex mutex_;
  TicketPool<HostRecord> pool_;
  std::optional<Error> failure_;
  bool closed_ = false;
  int inside_ = 0;  // threads in the host's post() or wait_all()
  std::condition_variable left_;
};

// Throws the first failure, this one or an earlier one; the first also ends what is still pending in the host.
void CallbackTransport::fail(const Error& why) {
  std::unique_lock lock(mutex_);
  if (!failure_) {
    failure_.emplace(why.code(), clip_failure_text(why.what()), why.peer());
    lock.unlock();
    if (host_.abort != nullptr) host_.abort(host_.context);
    lock.lock();
  }
  throw Error(*failure_);
}

Error CallbackTransport::translate(const char* call, std::int32_t result, int peer, const std::string& remark) {
  std::string text;
  if (host_.error_text != nullptr) {
    const char* said = host_.error_text(host_.context);
    if (said != nullptr) text = said;
  }
  if (host_.failed_rank != nullptr) {
    const std::int32_t said = host_.failed_rank(host_.context);
    if (said >= 0 && said < host_.size) peer = said;
  }
  // kPending and kOk are no failures, kClosed is not the host's to say.
  const bool known = result > static_cast<int>(Code::kOk) && result <= static_cast<int>(Code::kNonFinite) &&
                     result != static_cast<int>(Code::kClosed);
  const std::string where = "transport '" + name_ + "', rank " + std::to_string(host_.rank) + ": " + call;
  if (!known) {
    return Error(Code::kInternal,
                 where + " returned " + std::to_string(result) + ", which is not a failure it may report" +
                     (text.empty() ? "" : " (" + text + ")") + remark,
                 peer);
  }
  if (text.empty()) {
    text = where + " failed with result " + std::to_string(result);
    if (peer >= 0) text += " for an operation with rank " + std::to_string(peer);
  }
  return Error(static_cast<Code>(result), text + remark, peer);
}

void CallbackTransport::post(const TransportOp* ops, std::size_t n, Ticket* tickets) {
  if (forked()) throw used_after_fork();
  check_ops(ops, n, rank(), size(), slot_bytes());
  const InHost inside(*this);
  Scratch<HostOp> host_ops(n);
  Scratch<std::uint64_t> host_tickets(n);
  for (std::size_t i = 0; i < n; ++i) {
    host_ops[i] = {ops[i].kind == TransportOp::Kind::kRecv,
                   static_cast<std::int32_t>(ops[i].lane),
                   ops[i].peer,
                   0,
                   ops[i].data,
                   ops[i].bytes};
  }
  const std::int32_t result = host_.post(host_.context, host_ops.data(), n, host_tickets.data());
  if (result != 0) fail(translate("post", result, -1, ""));
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < n; ++i) {
    HostRecord* record = pool_.take();
    record->host_ticket = host_tickets[i];
    record->peer = ops[i].peer;
    record->bytes = ops[i].bytes;
    tickets[i] = TicketPool<HostRecord>::ticket_of(*record);
  }
}

void CallbackTransport::wait_all(const Ticket* tickets, std::size_t n, std::size_t* received,
                                 Deadline deadline) {
  if (forked()) throw used_after_fork();
  const InHost inside(*this);
  Scratch<std::uint64_t> host_tickets(n);
  Scratch<HostRecord*> records(n);
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < n; ++i) {
      records[i] = pool_.find(tickets[i]);
      host_tickets[i] = records[i]->host_ticket;
    }
  }
  const Clock::time_point now = Clock::now();
  const double timeout = deadline > now ? std::chrono::duration<double>(deadline - now).count() : 0.0;
  std::int64_t failed = -1;
  const std::int32_t result = host_.wait_all(host_.context, host_tickets.data(), n, timeout, &failed);
  if (result != 0) {
    std::string remark;
    int peer = -1;
    if (failed >= 0 && failed < static_cast<std::int64_t>(n)) {
      peer = records[static_cast<std::size_t>(failed)]->peer;
    } else if (failed != -1) {
      remark = " (it named operation " + std::to_string(failed) + " of " + std::to_string(n) + ")";
    }
    fail(translate("wait_all", result, peer, remark));
  }
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  for (std::size_t i = 0; i < n; ++i) {
    if (received != nullptr) received[i] = records[i]->bytes;
    pool_.give_back(records[i]);
  }
}

bool CallbackTransport::ready(const Ticket*, std::size_t) {
  if (forked()) throw used_after_fork();
  const std::lock_guard lock(mutex_);
  return closed_ || failure_.has_value();  // then a wait throws at once; else nobody knows
}

void CallbackTransport::abort(const Error& why) noexcept {
  if (forked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || closed_) return;
    failure_.emplace(why.code(), clip_failure_text(why.what()), why.peer());
    if (host_.abort == nullptr) return;
    ++inside_;
  }
  host_.abort(host_.context);
  const std::lock_guard lock(mutex_);
  if (--inside_ == 0) left_.notify_all();
}

void CallbackTransport::close() noexcept {
  if (forked()) return;
  std::unique_lock lock(mutex_);
  if (closed_) return;
  closed_ = true;
  if (inside_ > 0 && !failure_ && host_.abort != nullptr) {
    lock.unlock();
    host_.abort(host_.context);
    lock.lock();
  }
  // A host that keeps a thread longer is never told to close: that must be its last call.
  const bool left = left_.wait_for(lock, kClosePatience, [&] { return inside_ == 0; });
  lock.unlock();
  if (left && host_.close != nullptr) host_.close(host_.context);
}

}  // namespace

std::unique_ptr<Transport> make_callback(const HostCallbacks& callbacks) {
  const auto require = [](bool good, const std::string& what) {
    if (!good) throw Error(Code::kInvalid, "callbacks." + what);
  };
  require(callbacks.name != nullptr && callbacks.name[0] != '\0', "name: missing");
  require(callbacks.size >= 1 && callbacks.size <= kMostRanks,
          "size: " + std::to_string(callbacks.size) + " ranks cannot form a communicator");
  require(
      callbacks.rank >= 0 && callbacks.rank < callbacks.size,
      "rank: " + std::to_string(callbacks.rank) + " is not in a world of " + std::to_string(callbacks.size));
  require(callbacks.slot_bytes <= std::uint64_t{1} << 30,
          "slot_bytes: " + std::to_string(callbacks.slot_bytes) + ", expected at most 2^30");
  require(callbacks.post != nullptr, "post: missing");
  require(callbacks.wait_all != nullptr, "wait_all: missing");
  return std::make_unique<CallbackTransport>(callbacks);
}

}  // namespace gcomm
