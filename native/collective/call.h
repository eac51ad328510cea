// One collective call as the engine sees it: arguments, what ranks must agree on, and the same in words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "collective/codec_state.h"
#include "transport/transport.h"

namespace gcomm::collective {

enum class Verb : std::uint8_t {
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kAllToAll = 4,
  kBroadcast = 5,
  kPointToPoint = 6,
  kBarrier = 7,
};

enum class Op : std::uint8_t { kSum = 0, kAvg = 1 };

struct TensorArg {
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t count = 0;  // gcomm.h says of what, verb by verb
  std::uint64_t rows = 1;   // rows x cols is what is reduced
  std::uint64_t cols = 0;
  std::string key;
  KeyState* state = nullptr;  // null where the codec keeps nothing

  // Of an all_reduce: what this rank sent of it, and how many bytes that would have been as they are; headers
  // apart.
  std::uint64_t wire_bytes = 0;
  std::uint64_t raw_bytes = 0;
  bool raw_path = false;

  KeyTransform* transform() const noexcept { return state == nullptr ? nullptr : state->transform.get(); }

  // Set when the call starts: where the generators of stochastic rounding stand.
  bool counted = false;  // the key's counter was moved on for this call
  std::uint32_t call_number = 0;
  std::uint32_t input_stream = 0;
  std::uint32_t sum_stream = 0;
};

struct CallStats {
  std::uint64_t raw_bytes = 0;
  std::uint64_t wire_bytes = 0;
  double encode_s = 0;
  double comm_s = 0;
  double decode_s = 0;
  bool raw_path = false;   // all of it went unencoded
  bool nonfinite = false;  // of what this rank encoded or received, something was a NaN or an Inf
};

// Kept in pools and reused: assigning to it allocates nothing once its strings and lists have grown.
struct Call {
  Verb verb = Verb::kBarrier;
  Op op = Op::kSum;
  DType dtype = DType::kF32;
  int root = 0;          // broadcast: the root; point to point: the sender
  int peer = -1;         // point to point: the other side
  bool sending = false;  // point to point
  std::size_t tensor_count = 0;
  std::vector<TensorArg> tensors;          // the first tensor_count are in use
  std::vector<std::uint64_t> send_counts;  // all_to_all
  std::vector<std::uint64_t> recv_counts;
  std::shared_ptr<StatefulCodec> codec;  // null: elements as they are
  Deadline deadline;
  CallStats stats;

  const codec::BlockCodec& block() const noexcept { return codec->block(); }
  bool raises_nonfinite() const noexcept {
    return codec != nullptr && block().spec().nonfinite == codec::NonFinite::kRaise;
  }
};

// docs/wire-format.md, section 4.
std::uint64_t agreement_hash(const Call& call);

// "all_reduce(sum, float32[1024], codec int8)"
std::string in_words(const Call& call);

// What a message of kind 3 carries: the call in words, then a line "name: value" for each thing that must
// agree.
std::string describe(const Call& call);

// An error that every rank raises in the same call; the communicator goes on. Every other Error that leaves the
// engine closes it.
class SharedError : public Error {
  using Error::Error;
};

// The error for ranks that called differently, from every rank's describe(), in rank order: on all of them the
// same.
SharedError mismatch(const std::vector<std::pair<int, std::string>>& described);

}  // namespace gcomm::collective
