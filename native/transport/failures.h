// The failures that every transport words alike, so that ranks of one communicator report the same text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "transport/transport.h"

namespace gcomm {

// Longest text that travels to other ranks; longer ones are cut everywhere, also where they were given.
inline constexpr std::size_t kMaxFailureText = 2000;

// At most kMaxFailureText bytes of text, never cut within a UTF-8 sequence.
std::string clip_failure_text(std::string_view text);

Error peer_lost(int peer);
Error peer_closed(int peer);
Error communicator_closed();
Error used_after_fork();

// Of the ranks that were waited for those that do not wait for somebody themselves: a rank that waits for the
// one that is stuck is as late as that one, and must not be blamed in its place. All of them if each waits.
std::vector<bool> stuck_among(const std::vector<bool>& late, const std::vector<bool>& waiting);

// late[p]: rank p was waited for.
Error timed_out(int rank, const std::vector<bool>& late);

Error message_too_long(int rank, int peer, Lane lane, std::size_t message, std::size_t posted);

// Throws kInvalid unless every operation names another rank, a lane, memory, and, for a send, at most slot
// bytes.
void check_ops(const TransportOp* ops, std::size_t n, int rank, int size, std::size_t slot);

}  // namespace gcomm
