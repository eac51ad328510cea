#include "comm/work.h"

#include "transport/fork.h"

namespace gcomm::comm {

Deadline deadline_after(double seconds) {
  constexpr double kEver = 1e9;
  if (seconds > kEver) return Deadline::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

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

Deadline Work::patience() const noexcept {
  constexpr std::chrono::seconds kGrace(2);
  return call.deadline > Deadline::max() - kGrace ? Deadline::max() : call.deadline + kGrace;
}

bool Work::forked() const noexcept { return fork_generation() != generation; }

void Work::on_complete(const Completion& completion) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      completions_.push_back(completion);
      return;
    }
  }
  completion.invoke(completion, code_);
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
  for (const Completion& completion : completions_) completion.invoke(completion, code);
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
  work->completions_.clear();
  work->call.stats = {};
  work->job = nullptr;
  work->queued_at = Clock::now();
  work->generation = fork_generation();
  return WorkRef(work);
}

void WorkPool::give_back(Work* work) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(work);
}

}  // namespace gcomm::comm
