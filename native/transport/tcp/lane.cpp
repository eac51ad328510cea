#include "transport/tcp/lane.h"

#include <algorithm>
#include <cstring>

namespace gcomm::tcp {

void LaneEnd::post_receive(TcpOp* op) {
  const std::lock_guard lock(receive_mutex_);
  posted_.push(op);
  update_may_receive();
}

void LaneEnd::post_send(TcpOp* op) {
  const std::lock_guard lock(send_mutex_);
  op->header.bytes = static_cast<std::uint32_t>(op->op.bytes);
  op->header.check = frame_check(op->header.bytes, send_sequence_++);
  op->first_in_queue = unsent_.empty();
  unsent_.push(op);
  has_unsent_.store(true, std::memory_order_release);
}

bool LaneEnd::note_events(std::uint32_t events) {
  const News news = stream_->on_event(events);
  if (news.readable) {
    const std::lock_guard lock(receive_mutex_);
    readable_ = true;
    hangup_ = hangup_ || news.hangup;
    update_may_receive();
  }
  return news.writable;
}

void LaneEnd::update_may_receive() noexcept {
  const bool has_bytes = readable_ || staged_end_ - staged_begin_ >= sizeof(FrameHeader);
  const bool wanted = !posted_.empty() || discarding_;
  may_receive_.store(wanted && has_bytes && !ended_.load(std::memory_order_relaxed), std::memory_order_release);
}

// A read that comes back short has emptied the stream: what arrives later makes a new event. A stream that is
// known to end is read until its end shows.
LaneEnd::Read LaneEnd::after_read(const Moved& moved, std::size_t wanted) {
  switch (moved.flow) {
    case Flow::kMoved:
      if (moved.bytes < wanted && !hangup_) readable_ = false;
      return Read::kProgress;
    case Flow::kAgain:
      readable_ = false;
      return Read::kAgain;
    case Flow::kBroken:
      return Read::kBroken;
    case Flow::kEnded:
      break;
  }
  ended_.store(true, std::memory_order_release);
  return Read::kEnded;
}

LaneEnd::Read LaneEnd::read_stage() {
  if (!readable_) return Read::kAgain;
  std::memmove(stage_.data(), stage_.data() + staged_begin_, staged_end_ - staged_begin_);
  staged_end_ -= staged_begin_;
  staged_begin_ = 0;
  const iovec part{stage_.data() + staged_end_, kStage - staged_end_};
  const Moved moved = stream_->read(&part, 1);
  staged_end_ += moved.bytes;
  return after_read(moved, part.iov_len);
}

// The rest of the message goes where it belongs, and what follows it to the stage, in one call.
LaneEnd::Read LaneEnd::read_message(TcpOp* op) {
  if (!readable_) return Read::kAgain;
  const std::size_t rest = op->length - op->moved;
  const iovec parts[2] = {{static_cast<std::byte*>(op->op.data) + op->moved, rest}, {stage_.data(), kStage}};
  const Moved moved = stream_->read(parts, 2);
  if (moved.bytes > 0) {
    const std::size_t mine = std::min(moved.bytes, rest);
    op->moved += mine;
    staged_begin_ = 0;
    staged_end_ = moved.bytes - mine;
  }
  return after_read(moved, rest + kStage);
}

// Takes the header off the stage and, with it, as much of the message as lies there.
LaneState LaneEnd::start_frame() {
  FrameHeader header;
  std::memcpy(&header, stage_.data() + staged_begin_, sizeof header);
  if (header.check != frame_check(header.bytes, receive_sequence_)) return LaneState::kBadFrame;
  TcpOp* op = posted_.head;
  if (header.bytes > op->op.bytes) {
    too_long_ = {header.bytes, op->op.bytes};
    return LaneState::kTooLong;
  }
  ++receive_sequence_;
  staged_begin_ += sizeof header;
  op->length = header.bytes;
  op->moved = std::min<std::size_t>(header.bytes, staged_end_ - staged_begin_);
  if (op->moved > 0) std::memcpy(op->op.data, stage_.data() + staged_begin_, op->moved);
  staged_begin_ += op->moved;
  in_frame_ = true;
  return LaneState::kOpen;
}

LaneState LaneEnd::receive(OpList& done) {
  const std::lock_guard lock(receive_mutex_);
  if (broken_.load(std::memory_order_acquire)) return LaneState::kOpen;
  LaneState state = discarding_ ? discard() : LaneState::kOpen;
  while (!posted_.empty() && state == LaneState::kOpen && !broken_.load(std::memory_order_acquire)) {
    TcpOp* op = posted_.head;
    if (in_frame_ && op->moved == op->length) {
      in_frame_ = false;
      done.push(posted_.pop());
      continue;
    }
    Read result = Read::kProgress;
    if (in_frame_) {
      result = read_message(op);
    } else if (staged_end_ - staged_begin_ >= sizeof(FrameHeader)) {
      state = start_frame();
    } else {
      result = read_stage();
    }
    if (result == Read::kAgain) break;
    if (result == Read::kEnded) state = LaneState::kEnded;
    if (result == Read::kBroken) state = LaneState::kBadFrame;
  }
  update_may_receive();
  return state;
}

LaneState LaneEnd::discard() {
  for (;;) {
    const iovec part{stage_.data(), kStage};
    const Read result = after_read(stream_->read(&part, 1), kStage);
    if (result == Read::kEnded) return LaneState::kEnded;
    if (result == Read::kBroken) return LaneState::kBadFrame;
    if (result == Read::kAgain) return LaneState::kOpen;
  }
}

LaneState LaneEnd::send(OpList& done) {
  const std::lock_guard lock(send_mutex_);
  LaneState state = LaneState::kOpen;
  while (!unsent_.empty() && state == LaneState::kOpen && !broken_.load(std::memory_order_acquire)) {
    iovec parts[kMaxParts];
    std::size_t n_parts = 0;
    std::size_t wanted = 0;
    for (TcpOp* op = unsent_.head; op != nullptr && n_parts + 2 <= kMaxParts; op = op->next) {
      std::size_t skip = op->moved;
      if (skip < sizeof op->header) {
        parts[n_parts++] = {reinterpret_cast<std::byte*>(&op->header) + skip, sizeof op->header - skip};
        skip = sizeof op->header;
      }
      skip -= sizeof op->header;
      if (skip < op->op.bytes)
        parts[n_parts++] = {static_cast<std::byte*>(op->op.data) + skip, op->op.bytes - skip};
      wanted += sizeof op->header + op->op.bytes - op->moved;
    }
    const Moved moved = stream_->write(parts, n_parts);
    if (moved.flow == Flow::kEnded) state = LaneState::kEnded;
    if (moved.flow == Flow::kBroken) state = LaneState::kBadFrame;
    if (moved.flow != Flow::kMoved) break;
    std::size_t left = moved.bytes;
    while (!unsent_.empty()) {
      TcpOp* op = unsent_.head;
      const std::size_t step = std::min(left, sizeof op->header + op->op.bytes - op->moved);
      op->moved += step;
      left -= step;
      if (op->moved < sizeof op->header + op->op.bytes) break;
      done.push(unsent_.pop());
    }
    if (moved.bytes < wanted) break;  // the stream is full; the poller says when it is not
  }
  has_unsent_.store(!unsent_.empty(), std::memory_order_release);
  return state;
}

void LaneEnd::quiesce() { const std::scoped_lock both(receive_mutex_, send_mutex_); }

void LaneEnd::discard_incoming() {
  const std::lock_guard lock(receive_mutex_);
  posted_ = OpList();
  in_frame_ = false;
  discarding_ = true;
  update_may_receive();
}

}  // namespace gcomm::tcp
