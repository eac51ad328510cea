// One end of a lane: its frames to and from one peer, through a stream.
//
// The two directions have a mutex each, so that one thread may send while another receives. Neither ever waits
// for the peer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/tcp/op.h"
#include "transport/tcp/stream.h"

namespace gcomm::tcp {

enum class LaneState {
  kOpen,
  kEnded,     // the peer's end of the stream, or an error of the connection
  kBadFrame,  // the peer sent something that is not a frame, or spoilt the stream
  kTooLong,   // the next message does not fit the receive posted for it
};

struct TooLong {
  std::size_t message = 0;
  std::size_t posted = 0;
};

class LaneEnd {
 public:
  LaneEnd(std::unique_ptr<Stream> stream, const std::atomic<bool>& broken)
      : stream_(std::move(stream)), broken_(broken) {}

  const Fd& connection() const noexcept { return stream_->connection(); }
  std::size_t buffer_bytes() const noexcept { return stream_->buffer_bytes(); }
  void close() noexcept { stream_->close(); }

  void post_receive(TcpOp* op);
  // Queues op. Its first_in_queue says whether send() is worth calling: if not, the stream is full, and the
  // poller calls it when there is room.
  void post_send(TcpOp* op);

  // What the poller saw. Moves nothing; true if send() may find room now.
  bool note_events(std::uint32_t events);

  // Read into posted receives and write queued sends as far as the stream goes; operations that completed are
  // moved to done. Once `broken` is set they touch no buffer any more.
  LaneState receive(OpList& done);
  LaneState send(OpList& done);

  // Whether receive() has anything to try, or send() anything queued.
  bool may_receive() const noexcept { return may_receive_.load(std::memory_order_acquire); }
  bool has_unsent() const noexcept { return has_unsent_.load(std::memory_order_acquire); }
  // Nothing further will arrive.
  bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }

  // Returns when no thread is inside receive() or send() with a buffer in hand. Only after `broken` was set.
  void quiesce();

  // Forgets posted receives; from now on receive() throws away what arrives.
  void discard_incoming();
  TooLong too_long() const noexcept { return too_long_; }

 private:
  // Long enough for a header with a small message in one read, short enough that copying out of it costs
  // nothing.
  static constexpr std::size_t kStage = 8192;
  static constexpr std::size_t kMaxParts = 32;  // of one write

  enum class Read { kAgain, kProgress, kEnded, kBroken };
  Read read_stage();
  Read read_message(TcpOp* op);
  Read after_read(const Moved& moved, std::size_t wanted);
  LaneState start_frame();
  void update_may_receive() noexcept;
  LaneState discard();

  const std::unique_ptr<Stream> stream_;
  const std::atomic<bool>& broken_;

  std::mutex receive_mutex_;
  OpList posted_;          // head: the message that arrives now or next
  bool in_frame_ = false;  // the head's header was read
  bool readable_ = true;   // a read may find something
  bool hangup_ = false;    // the stream has an end, which only reading finds
  bool discarding_ = false;
  std::uint32_t receive_sequence_ = 0;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
  TooLong too_long_;
  std::atomic<bool> may_receive_{false};
  std::atomic<bool> ended_{false};
  std::array<std::byte, kStage> stage_;

  std::mutex send_mutex_;
  OpList unsent_;
  std::uint32_t send_sequence_ = 0;
  std::atomic<bool> has_unsent_{false};
};

}  // namespace gcomm::tcp
