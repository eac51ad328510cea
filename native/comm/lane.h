// A thread that runs calls in the order in which they were queued.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/work.h"

namespace gcomm::comm {

class Lane {
 public:
  // run: completes the work it is given, and does not throw. The thread starts with the first work.
  Lane(std::string thread_name, std::function<void(Work&)> run);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  // stop() came before.
  ~Lane();

  void submit(WorkRef work);
  // True once nothing is queued or running; false at the deadline.
  bool wait_idle(Deadline deadline);
  // Runs what is queued, then ends the thread.
  void stop();
  bool on_own_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void loop();

  const std::string thread_name_;
  const std::function<void(Work&)> run_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Work* head_ = nullptr;  // the queue holds one reference to each work
  Work* tail_ = nullptr;
  bool running_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace gcomm::comm
