// The one exception type of the core. Everything below the C boundary throws Error; capi/guard.h turns it
// into a result code and a last-error text.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace gcomm {

// Values equal those of gcomm_result in gcomm.h (pinned by static_assert in capi/).
enum class Code : int {
  kOk = 0,
  kInvalid = 1,      // an argument is wrong; nothing was sent
  kMismatch = 2,     // ranks called with different arguments; the communicator goes on
  kTimeout = 3,      // a deadline passed; the communicator is closed
  kPeerLost = 4,     // a peer ended or its connection broke; the communicator is closed
  kCodec = 5,        // bad codec text, or encoded bytes that cannot be decoded
  kDesync = 6,       // a dictionary stream lost step
  kAborted = 7,      // the communicator was aborted here or by a peer
  kClosed = 8,       // the communicator was closed before the call
  kUnsupported = 9,  // valid, but not built or not offered here
  kNoMemory = 10,
  kInternal = 11,
  kNonFinite = 12,  // nonfinite=raise and a NaN or Inf was seen on some rank
  kPending = 13,    // not an error: the work has not completed yet
};

class Error : public std::runtime_error {
 public:
  Error(Code code, std::string text, int peer = -1)
      : std::runtime_error(std::move(text)), code_(code), peer_(peer) {}

  Code code() const noexcept { return code_; }
  // The rank at fault where one is known (lost, late, or disagreeing), else -1.
  int peer() const noexcept { return peer_; }

 private:
  Code code_;
  int peer_;
};

}  // namespace gcomm
