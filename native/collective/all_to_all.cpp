// Each pair of ranks agrees on its own counts, so a call's hash cannot cover them. Instead every rank sends a
// fingerprint of all counts that it sends, less those that it receives; over all ranks they add up to zero
// exactly if every sender and receiver agree (but for one chance in 2^64), and every rank sees that by itself.
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "collective/frame.h"

namespace gcomm::collective {
namespace {

constexpr std::size_t kPrefix = sizeof(std::uint64_t);

std::uint64_t pair_fingerprint(int source, int destination, std::uint64_t count) {
  std::uint64_t x = Fnv64()
                        .number(static_cast<std::uint64_t>(source))
                        .number(static_cast<std::uint64_t>(destination))
                        .number(count)
                        .value();
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDull;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53ull;
  return x ^ x >> 33;
}

class AllToAll {
 public:
  explicit AllToAll(Frame& frame)
      : frame_(frame), exchange_(frame.exchange), call_(frame.call()), tensor_(call_.tensors[0]) {
    for (const int peer : exchange_.peers()) {
      fingerprint_ += pair_fingerprint(frame.rank(), peer, send_count(peer));
      fingerprint_ -= pair_fingerprint(peer, frame.rank(), receive_count(peer));
      out_chunks_ = std::max(out_chunks_, cut(send_count(peer)).chunks);
      in_chunks_ = std::max(in_chunks_, cut(receive_count(peer)).chunks);
      capacity_ = std::max(capacity_, capacity(send_count(peer)));
    }
  }

  void run() {
    for (const int peer : exchange_.peers()) exchange_.expect(peer, cut(receive_count(peer)).chunks);
    exchange_.prepare_sends(std::min(kSendSteps, out_chunks_), exchange_.peers().size(), capacity_);
    for (std::uint32_t step = 0; step < std::max(out_chunks_, in_chunks_ + kLookahead); ++step) {
      if (step < out_chunks_) send(step);
      if (step >= kLookahead && step - kLookahead < in_chunks_) receive(step - kLookahead);
    }
    copy_own();
  }

 private:
  std::uint64_t send_count(int peer) const { return call_.send_counts[static_cast<std::size_t>(peer)]; }
  std::uint64_t receive_count(int peer) const { return call_.recv_counts[static_cast<std::size_t>(peer)]; }
  Coding coding(std::uint64_t count) const { return movement_coding(call_, count, frame_.size()); }
  Cut cut(std::uint64_t count) const {
    return make_cut(count, coding(count).bound(codec::kTile), exchange_.messages());
  }
  std::size_t capacity(std::uint64_t count) const {
    const Coding how = coding(count);
    return kHeaderBytes + kPrefix + how.bound(cut(count).size(0)) + how.table_bytes(1);
  }
  // Elements before the part of `peer`, each part rounded up by `round`.
  template <typename Round>
  static std::uint64_t before(const std::vector<std::uint64_t>& counts, int peer, Round round) {
    std::uint64_t sum = 0;
    for (int p = 0; p < peer; ++p) sum += round(counts[static_cast<std::size_t>(p)]);
    return sum;
  }
  static std::uint64_t same(std::uint64_t count) { return count; }

  void send(std::uint32_t chunk) {
    exchange_.begin_step();
    {
      const Timer timer(frame_.stats().encode_s);
      for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
        const int peer = exchange_.peers()[i];
        const Cut part = cut(send_count(peer));
        if (chunk < part.chunks) encode(peer, i, part, chunk);
      }
    }
    exchange_.flush();
  }

  void encode(int peer, std::size_t index, const Cut& part, std::uint32_t chunk) {
    const Coding how = coding(part.count);
    const std::size_t pieces = part.size(chunk) > 0 ? 1 : 0;
    const std::size_t prefix = chunk == 0 ? kPrefix : 0;
    PayloadWriter out(how, exchange_.payload(index), exchange_.payload_capacity(), pieces, prefix);
    if (prefix > 0) std::memcpy(exchange_.payload(index), &fingerprint_, kPrefix);
    if (pieces > 0) {
      const std::uint64_t begin = before(call_.send_counts, peer, same) + part.begin(chunk);
      const std::uint64_t position = before(call_.send_counts, peer, round_up_to_tile) + part.begin(chunk);
      out.add(tensor_, at(tensor_.input, begin, how.item), part.size(chunk), position);
    }
    frame_.stats().nonfinite = frame_.stats().nonfinite || out.nonfinite();
    exchange_.seal(index, out.header(1, chunk));
    exchange_.send(peer, index);
  }

  void receive(std::uint32_t chunk) {
    frame_.from.clear();
    for (const int peer : exchange_.peers()) {
      if (chunk < cut(receive_count(peer)).chunks) frame_.from.push_back(peer);
    }
    const Incoming* messages = exchange_.receive(frame_.from.data(), frame_.from.size());
    if (chunk == 0) check_counts(messages);
    const Timer timer(frame_.stats().decode_s);
    for (std::size_t i = 0; i < frame_.from.size(); ++i) decode(messages[i], chunk);
    exchange_.release();
  }

  void check_counts(const Incoming* messages) {
    std::uint64_t sum = fingerprint_;
    for (std::size_t i = 0; i < frame_.from.size(); ++i) {
      std::uint64_t theirs = 0;
      if (messages[i].header.payload_bytes >= kPrefix) std::memcpy(&theirs, messages[i].payload, kPrefix);
      sum += theirs;
    }
    if (sum != 0) exchange_.disagree();
  }

  void decode(const Incoming& message, std::uint32_t chunk) {
    const Cut part = cut(receive_count(message.peer));
    const Coding how = coding(part.count);
    const std::size_t pieces = part.size(chunk) > 0 ? 1 : 0;
    Exchange::require(message, 1, chunk, part.size(chunk));
    if (message.header.has(kFlagNonFinite)) frame_.stats().nonfinite = true;
    PayloadReader in(how, message, pieces, chunk == 0 ? kPrefix : 0);
    if (pieces > 0) {
      const std::uint64_t begin = before(call_.recv_counts, message.peer, same) + part.begin(chunk);
      in.decode_next(at(tensor_.output, begin, how.item), part.size(chunk));
    }
    in.done();
  }

  void copy_own() {
    const std::uint64_t count = send_count(frame_.rank());
    if (count == 0) return;
    const std::size_t item = dtype_size(call_.dtype);
    std::memcpy(at(tensor_.output, before(call_.recv_counts, frame_.rank(), same), item),
                at(tensor_.input, before(call_.send_counts, frame_.rank(), same), item), count * item);
  }

  Frame& frame_;
  Exchange& exchange_;
  Call& call_;
  const TensorArg& tensor_;
  std::uint64_t fingerprint_ = 0;
  std::uint32_t out_chunks_ = 1;
  std::uint32_t in_chunks_ = 1;
  std::size_t capacity_ = kHeaderBytes;
};

}  // namespace

void all_to_all(Frame& frame) {
  Call& call = frame.call();
  TensorArg& tensor = call.tensors[0];
  bool all_raw = true;
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  for (const std::uint64_t part : call.send_counts) {
    const Coding coding = movement_coding(call, part, frame.size());
    all_raw = all_raw && coding.raw();
    bytes += coding.bound(part);
    count += part;
  }
  frame.stats().raw_path = all_raw;
  begin_call(frame, agreement_hash(call), bytes);
  // Parts go raw or encoded pair by pair: whether all ranks need the opening must not depend on that.
  opening(frame, call.codec != nullptr,
          call.raises_nonfinite() && has_nonfinite(tensor.input, call.dtype, count));
  if (call.codec != nullptr) start_key(call, tensor, frame.rank());
  AllToAll(frame).run();
}

}  // namespace gcomm::collective
