#include "comm/lane.h"

#include <pthread.h>

#include "base/thread.h"

namespace gcomm::comm {

Lane::Lane(std::string thread_name, std::function<void(Work&)> run)
    : thread_name_(std::move(thread_name)), run_(std::move(run)) {}

Lane::~Lane() = default;

void Lane::submit(WorkRef work) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = start_thread([this] { loop(); });
    pthread_setname_np(thread_.native_handle(), thread_name_.c_str());
  }
  Work* item = work.detach();
  item->next = nullptr;
  item->waited_in_queue = running_ || head_ != nullptr;
  (head_ == nullptr ? head_ : tail_->next) = item;
  tail_ = item;
  wake_.notify_one();
}

bool Lane::wait_idle(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [this] { return head_ == nullptr && !running_; };
  if (deadline == Deadline::max()) {
    idle_.wait(lock, idle);
    return true;
  }
  return idle_.wait_until(lock, deadline, idle);
}

void Lane::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Lane::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return head_ != nullptr || stopping_; });
    if (head_ == nullptr) return;
    {
      const WorkRef work = WorkRef::adopt(head_);
      head_ = head_->next;
      running_ = true;
      lock.unlock();
      run_(*work);
    }
    lock.lock();
    running_ = false;
    if (head_ == nullptr) idle_.notify_all();
  }
}

}  // namespace gcomm::comm
