// A communicator beside the lanes on which a rank says goodbye or why it broke.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transport/failures.h"
#include "transport/mpi/calls.h"
#include "transport/transport.h"

namespace gcomm::mpi {

template <typename Abi>
class Control {
 public:
  using Handle = typename Abi::Handle;

  Control(const Calls<Abi>& calls, Handle comm, int rank, int size)
      : calls_(calls), comm_(comm), rank_(rank), size_(size), goodbyes_(static_cast<std::size_t>(size)) {
    incoming_ = calls_.receive(&arriving_, sizeof arriving_, Abi::kAnySource, comm_);
  }

  // Takes what has arrived; the first notice, if one has. Several threads may call it.
  std::optional<Error> poll() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || ended_) return std::nullopt;
    for (;;) {
      const auto arrived = calls_.test(incoming_);
      if (!arrived.complete) return std::nullopt;
      const Message message = arriving_;
      incoming_ = calls_.receive(&arriving_, sizeof arriving_, Abi::kAnySource, comm_);
      if (arrived.bytes < kHeaderBytes || arrived.bytes != kHeaderBytes + message.text_bytes) continue;
      if (message.kind == kGoodbye) {
        goodbyes_[static_cast<std::size_t>(arrived.source)].store(Clock::now().time_since_epoch().count());
      } else if (message.kind == kNotice && message.code > 0 &&
                 message.code <= static_cast<std::uint32_t>(Code::kNonFinite)) {
        return Error(static_cast<Code>(message.code), std::string(message.text, message.text_bytes),
                     message.culprit);
      }
    }
  }

  // Whether the peer closed, and long enough ago for what it sent before to have arrived.
  bool peer_is_gone(int peer) const {
    const auto said = goodbyes_[static_cast<std::size_t>(peer)].load();
    return said != 0 && Clock::now() - Clock::time_point(Clock::duration(said)) > kAfterGoodbye;
  }
  bool all_said_goodbye() const {
    for (int p = 0; p < size_; ++p) {
      if (p != rank_ && goodbyes_[static_cast<std::size_t>(p)].load() == 0) return false;
    }
    return true;
  }

  void tell(const Error& why) {
    const std::string text = clip_failure_text(why.what());
    Message message{kNotice,
                    static_cast<std::uint32_t>(why.code()),
                    why.peer(),
                    static_cast<std::uint32_t>(text.size()),
                    {}};
    std::memcpy(message.text, text.data(), text.size());
    send_to_all(message);
  }
  void say_goodbye() { send_to_all(Message{kGoodbye, 0, -1, 0, {}}); }

  // Gives messages on their way at most so long. Afterwards nothing is received any more.
  void end(Deadline patience) {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    for (Handle& request : outgoing_) {
      while (!calls_.test(request).complete && Clock::now() < patience) std::this_thread::yield();
    }
    calls_.cancel(incoming_);
    while (!calls_.test(incoming_).complete && Clock::now() < patience) std::this_thread::yield();
  }

 private:
  enum Kind : std::uint32_t { kGoodbye = 1, kNotice = 2 };
  struct Message {
    std::uint32_t kind;
    std::uint32_t code;
    std::int32_t culprit;
    std::uint32_t text_bytes;
    char text[kMaxFailureText];
  };
  static constexpr std::size_t kHeaderBytes = 16;
  static constexpr std::chrono::milliseconds kAfterGoodbye{300};

  void send_to_all(const Message& message) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    messages_.push_back(message);
    for (int p = 0; p < size_; ++p) {
      if (p == rank_) continue;
      outgoing_.push_back(calls_.send(&messages_.back(), kHeaderBytes + message.text_bytes, p, comm_));
    }
  }

  const Calls<Abi>& calls_;
  const Handle comm_;
  const int rank_;
  const int size_;
  std::mutex mutex_;
  bool ended_ = false;
  Handle incoming_{};
  Message arriving_{};
  std::deque<Message> messages_;  // a goodbye and a notice at most
  std::vector<Handle> outgoing_;
  std::vector<std::atomic<Clock::rep>> goodbyes_;  // when; 0: not yet
};

}  // namespace gcomm::mpi
