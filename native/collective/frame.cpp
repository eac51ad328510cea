#include "collective/frame.h"

#include <algorithm>
#include <string>

namespace gcomm::collective {
namespace {

constexpr std::uint8_t kOpeningPhase = 0;
constexpr std::uint64_t kReceiveBudget = std::uint64_t{12} << 20;  // bytes, beyond the encoded size

SharedError nonfinite_error(const Call& call, const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  const char* verb = ranks.size() == 1 ? " holds" : " hold";
  return SharedError(Code::kNonFinite,
                     "nonfinite=raise: the input of " + text + verb + " a NaN or an Inf, in " + in_words(call),
                     ranks.front());
}

}  // namespace

void begin_call(Frame& frame, std::uint64_t hash, std::uint64_t encoded_bytes) {
  Exchange& exchange = frame.exchange;
  const std::uint64_t one_each = std::max<std::size_t>(1, exchange.peers().size()) * exchange.slot_bytes();
  const std::uint64_t depth = (kReceiveBudget + encoded_bytes) / one_each;
  constexpr std::uint64_t kMost = 2 * (kLookahead + 1);  // messages that a peer can be ahead
  exchange.begin(hash, static_cast<std::size_t>(std::clamp<std::uint64_t>(depth, 1, kMost)));
}

void expect_from_all(Frame& frame, std::uint64_t chunks) {
  for (const int peer : frame.exchange.peers()) frame.exchange.expect(peer, chunks);
}

void opening(Frame& frame, bool any_encoded, bool own_nonfinite) {
  Call& call = frame.call();
  const bool stateful = any_encoded && call.codec->error_feedback();
  if (!call.raises_nonfinite() && !stateful) return;
  Exchange& exchange = frame.exchange;
  exchange.prepare_sends(1, 1, kHeaderBytes);
  exchange.begin_step();
  Header header;
  header.kind = Kind::kHeaderOnly;
  header.phase = kOpeningPhase;
  if (own_nonfinite) header.flags |= kFlagNonFinite;
  exchange.seal(0, header);
  exchange.send_to_all(0);
  for (const int peer : exchange.peers()) exchange.expect(peer, 1);
  exchange.flush();
  const Incoming* messages = exchange.receive_from_all();
  std::vector<int> ranks;
  if (own_nonfinite) ranks.push_back(frame.rank());
  for (std::size_t i = 0; i < exchange.peers().size(); ++i) {
    Exchange::require(messages[i], kOpeningPhase, 0, 0);
    if (messages[i].header.has(kFlagNonFinite)) ranks.push_back(messages[i].peer);
  }
  exchange.release();
  if (ranks.empty() || !call.raises_nonfinite()) return;
  std::sort(ranks.begin(), ranks.end());
  frame.stats().nonfinite = true;
  throw nonfinite_error(call, ranks);
}

void start_key(Call& call, TensorArg& tensor, int source) {
  if (tensor.state == nullptr) {
    tensor.call_number = 0;
  } else {
    tensor.call_number = tensor.state->calls++;
    tensor.counted = true;
  }
  if (!call.codec->stochastic()) return;
  tensor.input_stream = codec::stream_id(tensor.key, source);
  tensor.sum_stream = codec::stream_id(tensor.key, codec::kSumSource);
}

void rewind_keys(Call& call) noexcept {
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    if (call.tensors[i].counted) --call.tensors[i].state->calls;
    call.tensors[i].counted = false;
  }
}

Coding movement_coding(const Call& call, std::uint64_t count, int ranks) {
  Coding raw(nullptr, call.dtype);
  if (call.codec == nullptr) return raw;
  raw.zero = call.block().spec().nonfinite == codec::NonFinite::kZero;
  const Coding coded(&call.block(), call.dtype);
  const std::uint64_t bytes = raw.bound(count);
  const std::uint64_t sent = bytes * static_cast<std::uint64_t>(std::max(1, ranks - 1));
  return goes_raw(call.block(), ranks, bytes, sent, coded.bound(count) < bytes) ? raw : coded;
}

void barrier(Frame& frame) {
  begin_call(frame, agreement_hash(frame.call()), 0);
  Exchange& exchange = frame.exchange;
  expect_from_all(frame, 1);
  exchange.prepare_sends(1, 1, kHeaderBytes);
  exchange.begin_step();
  Header header;
  header.kind = Kind::kHeaderOnly;
  header.phase = 1;
  exchange.seal(0, header);
  exchange.send_to_all(0);
  exchange.flush();
  const Incoming* messages = exchange.receive_from_all();
  for (std::size_t i = 0; i < exchange.peers().size(); ++i) Exchange::require(messages[i], 1, 0, 0);
  exchange.release();
}

}  // namespace gcomm::collective
