// One posted operation of the TCP transport.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>

#include "transport/ticket_pool.h"
#include "transport/transport.h"

namespace gcomm::tcp {

// A thread inside wait_all(). Covered by the transport's state mutex.
struct Wait {
  std::condition_variable changed;
  Lane lane{};                // of its operations: a call waits on one lane at a time
  std::size_t remaining = 0;  // operations of this wait that are not complete
  Wait* previous = nullptr;
  Wait* next = nullptr;
};

// What precedes each message on a lane.
struct FrameHeader {
  std::uint32_t bytes;
  std::uint32_t check;  // frame_check(): tells at once when the two ends are out of step
};
static_assert(sizeof(FrameHeader) == 8);

inline std::uint32_t frame_check(std::uint32_t bytes, std::uint32_t sequence) {
  return (bytes * 0x9E3779B1u) ^ (sequence * 0x85EBCA6Bu) ^ 0x6D636721u;
}

struct TcpOp : PoolRecord {
  TransportOp op{};
  FrameHeader header{};         // of a send
  std::size_t moved = 0;        // bytes that went through the socket, a send's header included
  std::size_t length = 0;       // of a receive's message, once its header was read
  bool first_in_queue = false;  // of a send: nothing was waiting for the socket when it was posted
  TcpOp* next = nullptr;
  Wait* wait = nullptr;               // state mutex
  std::atomic<bool> complete{false};  // set under the state mutex
};

// First in, first out, without owning.
struct OpList {
  TcpOp* head = nullptr;
  TcpOp* tail = nullptr;

  bool empty() const noexcept { return head == nullptr; }
  void push(TcpOp* op) noexcept {
    op->next = nullptr;
    (head == nullptr ? head : tail->next) = op;
    tail = op;
  }
  TcpOp* pop() noexcept {
    TcpOp* op = head;
    head = op->next;
    return op;
  }
};

}  // namespace gcomm::tcp
