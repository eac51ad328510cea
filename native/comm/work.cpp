#include "comm/work.h"

namespace gcomm::comm {

bool Work::wait_until(Deadline deadline) const {
  if (completed()) return true;
  std::unique_lock lock(mutex_);
  const auto done = [this] { return done_.load(std::memory_order_relaxed); };
  if (deadline == Deadline::max()) {
    completed_.wait(lock, done);
    return true;
  }
  return completed_.wait_until(lock, deadline, done);
}

void Work::on_complete(Callback callback, void* context) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      callbacks_.emplace_back(callback, context);
      return;
    }
  }
  callback(context, code_);
}

void Work::complete(Code code, std::string_view text, int peer) {
  code_ = code;
  text_.assign(text);
  peer_ = peer;
  total_s_ = std::chrono::duration<double>(Clock::now() - queued_at).count();
  {
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    completed_.notify_all();
  }
  // Nobody adds to the list any more.
  for (const auto& [callback, context] : callbacks_) callback(context, code);
}

void WorkRef::drop() noexcept {
  if (work_ == nullptr || work_->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<WorkPool> home = std::move(work_->home_);
  home->give_back(work_);
}

WorkRef WorkPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<Work>());
    free_.reserve(all_.size());  // give_back() must not have to allocate
    free_.push_back(all_.back().get());
  }
  Work* work = free_.back();
  free_.pop_back();
  work->home_ = shared_from_this();
  work->done_.store(false, std::memory_order_relaxed);
  work->callbacks_.clear();
  work->call.stats = {};
  work->job = nullptr;
  return WorkRef(work);
}

void WorkPool::give_back(Work* work) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(work);
}

}  // namespace gcomm::comm
