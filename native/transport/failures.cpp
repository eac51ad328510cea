#include "transport/failures.h"

#include <algorithm>

namespace gcomm {
namespace {

// "rank 3" or "ranks 1, 3".
std::string names(const std::vector<bool>& ranks) {
  std::string list;
  int n = 0;
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    if (!ranks[p]) continue;
    if (n++ > 0) list += ", ";
    list += std::to_string(p);
  }
  return (n == 1 ? "rank " : "ranks ") + list;
}

}  // namespace

std::string clip_failure_text(std::string_view text) {
  if (text.size() > kMaxFailureText) {
    std::size_t end = kMaxFailureText;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end);
  }
  return std::string(text);
}

Error peer_lost(int peer) {
  return Error(Code::kPeerLost,
               "rank " + std::to_string(peer) + " was lost: its process ended or its connection broke", peer);
}

Error peer_closed(int peer) {
  return Error(Code::kPeerLost, "rank " + std::to_string(peer) + " closed its communicator", peer);
}

Error communicator_closed() { return Error(Code::kClosed, "the communicator is closed"); }

Error used_after_fork() {
  return Error(Code::kClosed, "the communicator was used after fork(): it belongs to the parent process");
}

std::vector<bool> stuck_among(const std::vector<bool>& late, const std::vector<bool>& waiting) {
  std::vector<bool> stuck = late;
  for (std::size_t p = 0; p < stuck.size(); ++p) stuck[p] = late[p] && !waiting[p];
  return std::find(stuck.begin(), stuck.end(), true) == stuck.end() ? late : stuck;
}

Error timed_out(int rank, const std::vector<bool>& late) {
  int first = -1;
  for (std::size_t p = 0; p < late.size() && first < 0; ++p) {
    if (late[p]) first = static_cast<int>(p);
  }
  return Error(Code::kTimeout, "rank " + std::to_string(rank) + " timed out waiting for " + names(late), first);
}

Error message_too_long(int rank, int peer, Lane lane, std::size_t message, std::size_t posted) {
  return Error(Code::kMismatch,
               "rank " + std::to_string(rank) + ": a message of " + std::to_string(message) +
                   " bytes from rank " + std::to_string(peer) + " on lane " +
                   std::to_string(static_cast<int>(lane)) + " does not fit the " + std::to_string(posted) +
                   " bytes posted for it",
               peer);
}

void check_ops(const TransportOp* ops, std::size_t n, int rank, int size, std::size_t slot) {
  for (std::size_t i = 0; i < n; ++i) {
    const TransportOp& op = ops[i];
    const bool is_send = op.kind == TransportOp::Kind::kSend;
    if (op.peer < 0 || op.peer >= size || op.peer == rank) {
      throw Error(Code::kInvalid, "rank " + std::to_string(rank) + ": no message can go to or come from rank " +
                                      std::to_string(op.peer) + " (world size " + std::to_string(size) + ")");
    }
    if (static_cast<int>(op.lane) >= kLaneCount) {
      throw Error(Code::kInvalid, "lane " + std::to_string(static_cast<int>(op.lane)) + " does not exist");
    }
    if (op.data == nullptr && op.bytes > 0) throw Error(Code::kInvalid, "a message without memory");
    if (is_send && op.bytes > slot) {
      throw Error(Code::kInvalid, "a message of " + std::to_string(op.bytes) +
                                      " bytes is longer than the slot of " + std::to_string(slot));
    }
  }
}

}  // namespace gcomm
