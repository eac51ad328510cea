// What the pipelines of all verbs share.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "collective/call.h"
#include "collective/cut.h"
#include "collective/exchange.h"
#include "collective/payload.h"
#include "collective/plan.h"

namespace gcomm::collective {

// Chunks that a rank encodes and posts before it takes the first arrivals. In a two-phase verb the second phase
// lags as far behind the first again, so that messages are taken in exactly the order in which peers post them.
//
// No rank waits for another in a circle: take the rank that is in the earliest step. What it waits to receive
// was posted in earlier steps; and the sends that it waits for are kSendSteps old, so their receivers, in this
// step or a later one, have taken them already.
inline constexpr std::uint32_t kLookahead = 1;
inline constexpr std::uint32_t kSendSteps = kLookahead + 2;

// A call under way, and memory that outlives it so that the next one allocates nothing.
struct Frame {
  Exchange& exchange;
  PlanCache& plans;
  codec::Isa isa;

  std::vector<Item> items;
  std::vector<PayloadReader> readers;
  std::vector<codec::Encoded> arrivals;  // by rank
  std::vector<const void*> raw_inputs;   // by rank
  std::vector<int> from;                 // ranks
  std::vector<float> whole;              // a tensor that waits to be whole, where its output cannot hold it
  std::vector<std::uint8_t> shared;      // what transforms learned, on its way
  Call inner;                            // that carries it

  Call& call() { return exchange.call(); }
  CallStats& stats() { return exchange.stats(); }
  int rank() const { return exchange.rank(); }
  int size() const { return exchange.size(); }
  float divisor() { return call().op == Op::kAvg ? static_cast<float>(size()) : 1.0f; }
};

class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds), begin_(Clock::now()) {}
  ~Timer() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& seconds_;
  Clock::time_point begin_;
};

// Starts the call on the exchange. encoded_bytes: of a rank's input, for the memory that receives may take.
void begin_call(Frame& frame, std::uint64_t hash, std::uint64_t encoded_bytes);

// Announces `chunks` messages from every peer.
void expect_from_all(Frame& frame, std::uint64_t chunks);

// Where a failed agreement or a NaN must leave tensors and state untouched although a pipeline would write
// early (nonfinite=raise, error feedback), ranks exchange headers first. own_nonfinite: this rank's input holds
// a NaN or an Inf. Throws the SharedError kNonFinite that every rank throws.
void opening(Frame& frame, bool any_encoded, bool own_nonfinite);

// Moves the key's counter on and puts the tensor's generators in place, where the codec has any.
void start_key(Call& call, TensorArg& tensor, int source);
// The call did not happen.
void rewind_keys(Call& call) noexcept;

// How the single tensor of a movement verb travels.
Coding movement_coding(const Call& call, std::uint64_t count, int ranks);

// After all_reduce() or reduce_scatter(), and the end of the exchange.
void learn(Frame& frame);
void learn_scattered(Frame& frame);

void all_reduce(Frame& frame);
void reduce_scatter(Frame& frame);
void all_gather(Frame& frame);
void all_to_all(Frame& frame);
void broadcast(Frame& frame);
void barrier(Frame& frame);

}  // namespace gcomm::collective
