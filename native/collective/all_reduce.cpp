// The direct two-phase algorithm, and the exchange of small tensors as they are.
#include <algorithm>

#include "collective/frame.h"

namespace gcomm::collective {
namespace {

constexpr std::uint8_t kToOwners = 1;
constexpr std::uint8_t kFromOwners = 2;

// Everybody sends everything to everybody and adds it up in rank order.
class RawExchange {
 public:
  RawExchange(Frame& frame, const Plan& plan)
      : frame_(frame), exchange_(frame.exchange), part_(plan.raw), coding_(nullptr, frame.call().dtype) {}

  void run() {
    const std::uint32_t chunks = part_.chunks();
    const std::uint32_t ahead = std::min(kLookahead, chunks - 1);
    exchange_.prepare_sends(std::min(kSendSteps, chunks), 1, kHeaderBytes + part_.payload_bytes);
    for (std::uint32_t step = 0; step < chunks + ahead; ++step) {
      if (step < chunks) send(step);
      if (step >= ahead) reduce(step - ahead);
    }
  }

 private:
  void send(std::uint32_t chunk) {
    exchange_.begin_step();
    {
      const Timer timer(frame_.stats().encode_s);
      PayloadWriter out(coding_, exchange_.payload(0), exchange_.payload_capacity(), 0);
      for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
        const TensorArg& tensor = frame_.call().tensors[piece->tensor];
        out.add(tensor, at(tensor.input, piece->begin, coding_.item), piece->count, piece->begin);
      }
      exchange_.seal(0, out.header(kToOwners, chunk));
    }
    exchange_.send_to_all(0);
    exchange_.flush();
  }

  void reduce(std::uint32_t chunk) {
    std::uint64_t count = 0;
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) count += piece->count;
    const Incoming* messages = exchange_.receive_from_all();
    const Timer timer(frame_.stats().decode_s);
    Call& call = frame_.call();
    const bool zero = call.block().spec().nonfinite == codec::NonFinite::kZero;
    frame_.readers.clear();
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      Exchange::require(messages[i], kToOwners, chunk, count);
      frame_.readers.emplace_back(coding_, messages[i], 0);
    }
    std::vector<const void*>& inputs = frame_.raw_inputs;
    inputs.resize(static_cast<std::size_t>(frame_.size()));
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      const TensorArg& tensor = call.tensors[piece->tensor];
      inputs[static_cast<std::size_t>(frame_.rank())] = at(tensor.input, piece->begin, coding_.item);
      for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
        inputs[static_cast<std::size_t>(messages[i].peer)] = frame_.readers[i].next(piece->count).data;
      }
      const bool nonfinite =
          codec::raw_reduce(inputs.data(), frame_.size(), call.dtype, piece->count, frame_.divisor(), zero,
                            at(tensor.output, piece->begin, coding_.item), frame_.isa);
      frame_.stats().nonfinite = frame_.stats().nonfinite || nonfinite;
    }
    for (const PayloadReader& reader : frame_.readers) reader.done();
    exchange_.release();
  }

  Frame& frame_;
  Exchange& exchange_;
  const Part& part_;
  const Coding coding_;
};

// Phase 1: everybody sends each owner its shard; phase 2: owners send the encoded sum to everybody.
class TwoPhases {
 public:
  TwoPhases(Frame& frame, const Plan& plan)
      : frame_(frame),
        exchange_(frame.exchange),
        plan_(plan),
        part_(plan.direct),
        coding_(&frame.call().block(), frame.call().dtype),
        feedback_(frame.call().codec->error_feedback()) {}

  // Messages that a peer sends here, both phases.
  std::uint64_t messages_from(int peer) const {
    std::uint64_t n = 0;
    for (std::uint32_t chunk = 0; chunk < part_.chunks(); ++chunk) {
      n += to_owner(chunk, frame_.rank()) ? 1 : 0;
      n += elements(chunk, peer) > 0 ? 1 : 0;
    }
    return n;
  }

  void run() {
    const std::uint32_t chunks = part_.chunks();
    const std::uint32_t ahead = std::min(kLookahead, chunks - 1);
    // In a step's ring: one buffer for each peer's part, and one for the sum.
    exchange_.prepare_sends(chunks == 1 ? 1 : kSendSteps, exchange_.peers().size() + 1,
                            kHeaderBytes + part_.payload_bytes);
    for (std::uint32_t step = 0; step < chunks + 2 * ahead; ++step) {
      exchange_.begin_step();
      if (step < chunks) send(step);
      if (step >= ahead && step - ahead < chunks) reduce(step - ahead);
      if (step >= 2 * ahead) receive(step - 2 * ahead);
    }
  }

 private:
  std::uint64_t elements(std::uint32_t chunk, int owner) const {
    std::uint64_t n = 0;
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      n += plan_.size_in_shard(*piece, owner);
    }
    return n;
  }
  std::size_t pieces(std::uint32_t chunk, int owner) const {
    std::size_t n = 0;
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      n += plan_.size_in_shard(*piece, owner) > 0 ? 1 : 0;
    }
    return n;
  }
  // The first message of phase 1 goes to everybody: it carries the agreement.
  bool to_owner(std::uint32_t chunk, int owner) const { return chunk == 0 || elements(chunk, owner) > 0; }
  std::uint64_t start(const Piece& piece, int owner) const {
    return plan_.shard[piece.tensor] * static_cast<std::uint64_t>(owner) + piece.begin;
  }

  void send(std::uint32_t chunk) {
    {
      const Timer timer(frame_.stats().encode_s);
      for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
        const int owner = exchange_.peers()[i];
        if (to_owner(chunk, owner)) encode(chunk, owner, i);
      }
    }
    exchange_.flush();
  }

  void encode(std::uint32_t chunk, int owner, std::size_t index) {
    PayloadWriter out(coding_, exchange_.payload(index), exchange_.payload_capacity(), pieces(chunk, owner));
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      const std::uint64_t count = plan_.size_in_shard(*piece, owner);
      if (count == 0) continue;
      const TensorArg& tensor = frame_.call().tensors[piece->tensor];
      const std::uint64_t begin = start(*piece, owner);
      out.add(tensor, at(tensor.input, begin, coding_.item), count, begin);
    }
    frame_.stats().nonfinite = frame_.stats().nonfinite || out.nonfinite();
    exchange_.seal(index, out.header(kToOwners, chunk));
    exchange_.send(owner, index);
  }

  void reduce(std::uint32_t chunk) {
    const int own = frame_.rank();
    if (!to_owner(chunk, own)) return;
    const std::uint64_t count = elements(chunk, own);
    const std::size_t n_pieces = pieces(chunk, own);
    const Incoming* messages = exchange_.receive_from_all();
    {
      const Timer timer(frame_.stats().decode_s);
      const std::size_t index = exchange_.peers().size();
      PayloadWriter out(coding_, exchange_.payload(index), exchange_.payload_capacity(), n_pieces);
      frame_.readers.clear();
      for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
        Exchange::require(messages[i], kToOwners, chunk, count);
        frame_.readers.emplace_back(coding_, messages[i], n_pieces);
        out.saw_nonfinite(messages[i].header.has(kFlagNonFinite));
      }
      for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
        if (plan_.size_in_shard(*piece, own) > 0) reduce(*piece, messages, out);
      }
      for (const PayloadReader& reader : frame_.readers) reader.done();
      exchange_.release();
      frame_.stats().nonfinite = frame_.stats().nonfinite || out.nonfinite();
      if (count > 0) {
        exchange_.seal(index, out.header(kFromOwners, chunk));
        exchange_.send_to_all(index);
      }
    }
    // Without a sum to send, too: it asks for the messages that come next.
    exchange_.flush();
  }

  void reduce(const Piece& piece, const Incoming* messages, PayloadWriter& out) {
    const TensorArg& tensor = frame_.call().tensors[piece.tensor];
    const std::uint64_t begin = start(piece, frame_.rank());
    codec::ReduceJob job;
    job.count = plan_.size_in_shard(piece, frame_.rank());
    frame_.arrivals.resize(static_cast<std::size_t>(frame_.size()));
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      frame_.arrivals[static_cast<std::size_t>(messages[i].peer)] = frame_.readers[i].next(job.count);
    }
    job.own = at(tensor.input, begin, coding_.item);
    job.dtype = coding_.dtype;
    job.arrivals = frame_.arrivals.data();
    job.ranks = frame_.size();
    job.own_rank = frame_.rank();
    job.divisor = frame_.divisor();
    if (feedback_) job.residual = tensor.state->residual.data() + begin;
    job.position = {begin, tensor.call_number, tensor.sum_stream};
    job.dst = out.next();
    job.capacity = out.left();
    job.out = at(tensor.output, begin, coding_.item);
    const codec::EncodeResult result = coding_.block->reduce_encode(job);
    out.saw_nonfinite(result.nonfinite);
    out.added(result.bytes, job.count);
  }

  void receive(std::uint32_t chunk) {
    frame_.from.clear();
    for (const int owner : exchange_.peers()) {
      if (elements(chunk, owner) > 0) frame_.from.push_back(owner);
    }
    const Incoming* messages = exchange_.receive(frame_.from.data(), frame_.from.size());
    const Timer timer(frame_.stats().decode_s);
    for (std::size_t i = 0; i < frame_.from.size(); ++i) {
      const int owner = frame_.from[i];
      Exchange::require(messages[i], kFromOwners, chunk, elements(chunk, owner));
      if (messages[i].header.has(kFlagNonFinite)) frame_.stats().nonfinite = true;
      PayloadReader in(coding_, messages[i], pieces(chunk, owner));
      for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
        const std::uint64_t count = plan_.size_in_shard(*piece, owner);
        if (count == 0) continue;
        const TensorArg& tensor = frame_.call().tensors[piece->tensor];
        in.decode_next(at(tensor.output, start(*piece, owner), coding_.item), count, tensor.count * coding_.item);
      }
      in.done();
    }
    exchange_.release();
  }

  Frame& frame_;
  Exchange& exchange_;
  const Plan& plan_;
  const Part& part_;
  const Coding coding_;
  const bool feedback_;
};

bool any_nonfinite(const Call& call) {
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    if (has_nonfinite(call.tensors[i].input, call.dtype, call.tensors[i].count)) return true;
  }
  return false;
}

}  // namespace

void all_reduce(Frame& frame) {
  Call& call = frame.call();
  const std::uint64_t hash = agreement_hash(call);
  const Plan& plan = frame.plans.get(call, hash, frame.size(), frame.exchange.slot_bytes());
  const bool encoded = plan.direct.chunks() > 0;
  frame.stats().raw_path = !encoded;
  if (!encoded && plan.raw.chunks() == 0) return barrier(frame);  // only empty tensors: the headers remain
  begin_call(frame, hash, plan.encoded_bytes);
  opening(frame, encoded, call.raises_nonfinite() && any_nonfinite(call));
  expect_from_all(frame, plan.raw.chunks());
  TwoPhases two_phases(frame, plan);
  if (encoded) {
    for (const int peer : frame.exchange.peers()) frame.exchange.expect(peer, two_phases.messages_from(peer));
    for (std::size_t i = 0; i < call.tensor_count; ++i) {
      if (plan.shard[i] > 0) start_key(call, call.tensors[i], frame.rank());
    }
  }
  if (plan.raw.chunks() > 0) RawExchange(frame, plan).run();
  if (encoded) two_phases.run();
}

}  // namespace gcomm::collective
