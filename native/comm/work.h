// A queued call: what the caller waits for. Works are pooled, so that a call allocates nothing once as many
// were under way at a time before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collective/call.h"

namespace gcomm::comm {

class WorkPool;

// Never, for times beyond a human's patience.
Deadline deadline_after(double seconds);

// Called once, when a work completes. fn is of whatever type invoke casts it back to.
struct Completion {
  void (*invoke)(const Completion& completion, Code code);
  void (*fn)();
  void* context;
};

class Work {
 public:
  // False if it is not complete by then.
  bool wait_until(Deadline deadline) const;
  bool completed() const noexcept { return done_.load(std::memory_order_acquire); }

  // Of a completed work.
  Code code() const noexcept { return code_; }
  const std::string& text() const noexcept { return text_; }
  int peer() const noexcept { return peer_; }
  const collective::CallStats& stats() const noexcept { return call.stats; }
  double total_s() const noexcept { return total_s_; }

  // Until when to wait for it without a limit of one's own: the call's deadline, at which it fails by itself,
  // and time for that.
  Deadline patience() const noexcept;
  // When the work completes, from the thread that completes it, or at once.
  void on_complete(const Completion& completion);
  // The work was queued by a parent of this process.
  bool forked() const noexcept;

  // The lane's side.
  void complete(Code code, std::string_view text, int peer);
  collective::Call call;
  void (*job)(void* context) = nullptr;  // to be run instead of the call
  void* job_context = nullptr;
  Clock::time_point queued_at;
  unsigned generation = 0;       // fork_generation() then
  bool waited_in_queue = false;  // other calls were before it
  Work* next = nullptr;          // in its lane's queue

 private:
  friend class WorkPool;
  friend class WorkRef;

  std::atomic<int> references_{0};
  std::shared_ptr<WorkPool> home_;  // set while somebody holds the work

  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable completed_;
  std::vector<Completion> completions_;
  Code code_ = Code::kOk;
  std::string text_;
  int peer_ = -1;
  double total_s_ = 0;
};

// Counts as one holder of a work.
class WorkRef {
 public:
  WorkRef() = default;
  explicit WorkRef(Work* work) noexcept : work_(work) { hold(); }
  WorkRef(const WorkRef& other) noexcept : work_(other.work_) { hold(); }
  WorkRef(WorkRef&& other) noexcept : work_(std::exchange(other.work_, nullptr)) {}
  WorkRef& operator=(WorkRef other) noexcept {
    std::swap(work_, other.work_);
    return *this;
  }
  ~WorkRef() { drop(); }

  Work* get() const noexcept { return work_; }
  Work* operator->() const noexcept { return work_; }
  Work& operator*() const noexcept { return *work_; }
  explicit operator bool() const noexcept { return work_ != nullptr; }
  // Hands the hold over to a raw pointer, to come back through adopt().
  Work* detach() noexcept { return std::exchange(work_, nullptr); }
  static WorkRef adopt(Work* work) noexcept {
    WorkRef ref;
    ref.work_ = work;
    return ref;
  }

 private:
  void hold() noexcept {
    if (work_ != nullptr) work_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void drop() noexcept;

  Work* work_ = nullptr;
};

class WorkPool : public std::enable_shared_from_this<WorkPool> {
 public:
  WorkRef take();

 private:
  friend class WorkRef;
  void give_back(Work* work) noexcept;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Work>> all_;
  std::vector<Work*> free_;
};

}  // namespace gcomm::comm
