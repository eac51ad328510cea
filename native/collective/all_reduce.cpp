// The direct two-phase algorithm, and the exchange of small tensors as they are.
#include <algorithm>
#include <cstring>

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
        TensorArg& tensor = *frame_.items[piece->item].tensor;
        out.add(tensor, at(tensor.input, piece->begin, coding_.item), piece->count, piece->begin);
        const std::uint64_t bytes = piece->count * coding_.item * exchange_.peers().size();
        tensor.raw_bytes += bytes;
        tensor.wire_bytes += bytes;
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
      const TensorArg& tensor = *frame_.items[piece->item].tensor;
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
      if (step >= 2 * ahead) receive(step - 2 * ahead, ahead);
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
  // That have an entry in the length table, where there is one.
  std::size_t pieces(std::uint32_t chunk, int owner) const {
    std::size_t n = 0;
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      if (item_of(*piece).coding.has_table() && plan_.size_in_shard(*piece, owner) > 0) ++n;
    }
    return n;
  }
  // The first message of phase 1 goes to everybody: it carries the agreement.
  bool to_owner(std::uint32_t chunk, int owner) const { return chunk == 0 || elements(chunk, owner) > 0; }
  std::uint64_t start(const Piece& piece, int owner) const {
    return plan_.shard[piece.item] * static_cast<std::uint64_t>(owner) + piece.begin;
  }

  const Item& item_of(const Piece& piece) const { return frame_.items[piece.item]; }
  // Elements that only encoding put there.
  std::uint64_t extra(std::uint32_t chunk, int owner) const {
    std::uint64_t n = 0;
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      if (item_of(*piece).role == Item::Role::kSide) n += plan_.size_in_shard(*piece, owner);
    }
    return n;
  }

  // The transforms of tensors that begin in this chunk read their inputs.
  void prepare(std::uint32_t chunk) {
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      const Item& item = item_of(*piece);
      if (!item.opens_tensor || piece->begin > 0) continue;
      const TensorArg& tensor = *item.tensor;
      const bool zero = coding_.block->spec().nonfinite == codec::NonFinite::kZero;
      item.transform()->prepare(tensor.input, coding_.dtype,
                                feedback_ ? tensor.state->residual.data() : nullptr, zero);
    }
  }

  void send(std::uint32_t chunk) {
    {
      const Timer timer(frame_.stats().encode_s);
      prepare(chunk);
      for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
        const int owner = exchange_.peers()[i];
        if (to_owner(chunk, owner)) encode(chunk, owner, i);
      }
    }
    exchange_.flush();
  }

  // `count` elements of an item, encoded in `bytes`, go to so many peers.
  void account(const Item& item, std::uint64_t count, std::size_t bytes, std::size_t peers) const {
    item.tensor->wire_bytes += bytes * peers;
    if (item.role != Item::Role::kSide) item.tensor->raw_bytes += count * dtype_size(coding_.dtype) * peers;
  }

  void encode(std::uint32_t chunk, int owner, std::size_t index) {
    PayloadWriter out(coding_, exchange_.payload(index), exchange_.payload_capacity(), pieces(chunk, owner));
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) {
      const std::uint64_t count = plan_.size_in_shard(*piece, owner);
      if (count == 0) continue;
      const Item& item = item_of(*piece);
      const std::uint64_t begin = start(*piece, owner);
      out.use(item.coding);
      const std::size_t left = out.left();
      if (item.wire != nullptr) {
        out.add_encoded(item.wire, count, begin);
      } else {
        out.add(*item.tensor, at(item.input, begin, item.coding.item), count, begin, item.map());
      }
      account(item, count, left - out.left(), 1);
    }
    frame_.stats().nonfinite = frame_.stats().nonfinite || out.nonfinite();
    exchange_.seal(index, out.header(kToOwners, chunk), extra(chunk, owner));
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
        exchange_.seal(index, out.header(kFromOwners, chunk), extra(chunk, own));
        exchange_.send_to_all(index);
      }
    }
    // Without a sum to send, too: it asks for the messages that come next.
    exchange_.flush();
  }

  void reduce(const Piece& piece, const Incoming* messages, PayloadWriter& out) {
    const Item& item = item_of(piece);
    const std::uint64_t begin = start(piece, frame_.rank());
    codec::ReduceJob job;
    job.count = plan_.size_in_shard(piece, frame_.rank());
    frame_.arrivals.resize(static_cast<std::size_t>(frame_.size()));
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      PayloadReader& reader = frame_.readers[i];
      reader.use(item.coding);
      frame_.arrivals[static_cast<std::size_t>(messages[i].peer)] = reader.next(job.count);
    }
    job.own = at(item.input, begin, item.coding.item);
    job.dtype = item.coding.dtype;
    job.map = item.map();
    job.arrivals = frame_.arrivals.data();
    job.ranks = frame_.size();
    job.own_rank = frame_.rank();
    job.divisor = frame_.divisor();
    if (item.coding.block->spec().error_feedback) job.residual = item.tensor->state->residual.data() + begin;
    job.position = {begin, item.tensor->call_number, item.tensor->sum_stream};
    out.use(item.coding);
    job.dst = out.next();
    job.capacity = out.left();
    if (item.written_by_owner()) job.out = at(item.output, begin, item.coding.item);
    const codec::EncodeResult result = item.coding.block->reduce_encode(job);
    out.saw_nonfinite(result.nonfinite);
    out.added(result.bytes, job.count);
    account(item, job.count, result.bytes, exchange_.peers().size());
  }

  // Whether something of the own sum is to be read back from what was sent.
  bool reads_own(std::uint32_t chunk) const {
    if (elements(chunk, frame_.rank()) == 0) return false;
    return std::any_of(part_.begin(chunk), part_.end(chunk),
                       [this](const Piece& piece) { return !item_of(piece).written_by_owner(); });
  }

  // steps_ago: when this rank's own sums of the chunk were sent.
  void receive(std::uint32_t chunk, std::size_t steps_ago) {
    frame_.from.clear();
    for (const int owner : exchange_.peers()) {
      if (elements(chunk, owner) > 0) frame_.from.push_back(owner);
    }
    const std::size_t n = frame_.from.size();
    const Incoming* messages = exchange_.receive(frame_.from.data(), n);
    const Timer timer(frame_.stats().decode_s);
    frame_.readers.clear();
    for (std::size_t i = 0; i < n; ++i) {
      const int owner = frame_.from[i];
      Exchange::require(messages[i], kFromOwners, chunk, elements(chunk, owner));
      if (messages[i].header.has(kFlagNonFinite)) frame_.stats().nonfinite = true;
      frame_.readers.emplace_back(coding_, messages[i], pieces(chunk, owner));
    }
    if (reads_own(chunk)) {
      frame_.from.push_back(frame_.rank());
      frame_.readers.emplace_back(coding_, exchange_.sent(exchange_.peers().size(), steps_ago),
                                  pieces(chunk, frame_.rank()));
    }
    for (const Piece* piece = part_.begin(chunk); piece != part_.end(chunk); ++piece) take(*piece);
    for (const PayloadReader& reader : frame_.readers) reader.done();
    exchange_.release();
  }

  // A piece's sums from all owners.
  void take(const Piece& piece) {
    const Item& item = item_of(piece);
    for (std::size_t i = 0; i < frame_.from.size(); ++i) {
      const int owner = frame_.from[i];
      const std::uint64_t count = plan_.size_in_shard(piece, owner);
      if (count == 0) continue;
      frame_.readers[i].use(item.coding);
      const codec::Encoded encoded = frame_.readers[i].next(count);
      if (owner == frame_.rank() && item.written_by_owner()) continue;
      if (item.role == Item::Role::kWhole) {
        take_whole(piece, owner, count, encoded);
      } else {
        take(item, start(piece, owner), count, encoded);
      }
    }
    if (!plan_.ends_item(piece)) return;
    if (item.last_side) item.transform()->sides_arrived();
    if (item.role == Item::Role::kWhole) item.transform()->finish(whole(item), item.output, item.coding.dtype);
  }

  void take(const Item& item, std::uint64_t begin, std::uint64_t count, codec::Encoded encoded) {
    const codec::BlockCodec& block = *item.coding.block;
    std::uint8_t* out = at(item.output, begin, item.coding.item);
    if (item.map() != nullptr) {
      block.decode_mapped(encoded, out, item.coding.dtype, count, *item.map(), begin);
    } else if (item.count * item.coding.item >= codec::kStreamBytes) {
      block.decode_streaming(encoded, out, item.coding.dtype, count);
    } else {
      block.decode(encoded, out, item.coding.dtype, count);
    }
  }

  // Where a tensor is put together: its output if that takes floats. Pieces of other tensors that need such a
  // place do not come in between.
  float* whole(const Item& item) {
    const bool fits = reinterpret_cast<std::uintptr_t>(item.output) % alignof(float) == 0;
    if (item.coding.dtype == DType::kF32 && fits) return static_cast<float*>(item.output);
    if (frame_.whole.size() < item.count) frame_.whole.resize(item.count);
    return frame_.whole.data();
  }

  void take_whole(const Piece& piece, int owner, std::uint64_t count, codec::Encoded encoded) {
    const Item& item = item_of(piece);
    const std::uint64_t begin = start(piece, owner);
    float* values = whole(item);
    item.coding.block->decode(encoded, values + begin, DType::kF32, count);
    const std::uint64_t full = plan_.shard[piece.item];
    const std::uint64_t first = full * static_cast<std::uint64_t>(owner);
    item.transform()->arrived(values, {owner, first, std::min(item.count, first + full)}, begin + count);
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
  make_items(call, frame.size(), frame.items);
  const Plan& plan =
      frame.plans.get(call, frame.items, plan_hash(call, frame.items), frame.size(), frame.exchange.messages());
  const bool encoded = plan.direct.chunks() > 0;
  frame.stats().raw_path = !encoded;
  if (!encoded && plan.raw.chunks() == 0) return barrier(frame);  // only empty tensors: the headers remain
  begin_call(frame, hash, plan.encoded_bytes);
  opening(frame, encoded, call.raises_nonfinite() && any_nonfinite(call));
  expect_from_all(frame, plan.raw.chunks());
  for (std::size_t i = 0; i < frame.items.size(); ++i) {
    if (plan.shard[i] == 0) frame.items[i].tensor->raw_path = true;
  }
  TwoPhases two_phases(frame, plan);
  if (encoded) {
    for (const int peer : frame.exchange.peers()) frame.exchange.expect(peer, two_phases.messages_from(peer));
    for (std::size_t i = 0; i < frame.items.size(); ++i) {
      const Item& item = frame.items[i];
      if (plan.shard[i] > 0 && item.role != Item::Role::kSide) start_key(call, *item.tensor, frame.rank());
    }
  }
  if (plan.raw.chunks() > 0) RawExchange(frame, plan).run();
  if (encoded) two_phases.run();
}

}  // namespace gcomm::collective
