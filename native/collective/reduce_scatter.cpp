// The first phase of an all_reduce alone: every rank keeps the sum of its shard, not encoded.
#include <algorithm>

#include "collective/frame.h"

namespace gcomm::collective {
namespace {

// A map that sees a shard where the engine's random streams have it, whole tiles apart, where it is in the
// tensor.
class ShardMap final : public codec::TileMap {
 public:
  ShardMap(const codec::TileMap* map, std::uint64_t count, std::uint64_t stride)
      : map_(map), count_(count), stride_(stride) {}

  const codec::TileMap* get() const noexcept { return map_ == nullptr ? nullptr : this; }
  void forward(std::uint64_t element, std::size_t count, float* x) const override {
    map_->forward(place(element), count, x);
  }
  void inverse(std::uint64_t element, std::size_t count, float* x) const override {
    map_->inverse(place(element), count, x);
  }

 private:
  std::uint64_t place(std::uint64_t element) const { return element / stride_ * count_ + element % stride_; }

  const codec::TileMap* map_;
  const std::uint64_t count_;
  const std::uint64_t stride_;
};

const codec::TileMap* map_of(const TensorArg& tensor, const Coding& coding) {
  const KeyTransform* transform = tensor.transform();
  const bool maps = !coding.raw() && transform != nullptr && transform->path() == KeyTransform::Path::kMapped;
  return maps ? &transform->map() : nullptr;
}

class ReduceScatter {
 public:
  ReduceScatter(Frame& frame, const Coding& coding, const Cut& cut)
      : frame_(frame),
        exchange_(frame.exchange),
        coding_(coding),
        cut_(cut),
        tensor_(frame.call().tensors[0]),
        stride_(round_up_to_tile(cut.count)),
        map_(map_of(tensor_, coding_), cut.count, stride_) {}

  void run() {
    const std::uint32_t ahead = std::min(kLookahead, cut_.chunks - 1);
    exchange_.prepare_sends(std::min(kSendSteps, cut_.chunks), exchange_.peers().size(),
                            kHeaderBytes + coding_.bound(cut_.size(0)) + coding_.table_bytes(1));
    for (std::uint32_t step = 0; step < cut_.chunks + ahead; ++step) {
      if (step < cut_.chunks) send(step);
      if (step >= ahead) reduce(step - ahead);
    }
  }

 private:
  std::size_t pieces(std::uint32_t chunk) const { return cut_.size(chunk) > 0 ? 1 : 0; }

  void send(std::uint32_t chunk) {
    exchange_.begin_step();
    {
      const Timer timer(frame_.stats().encode_s);
      for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
        const int owner = exchange_.peers()[i];
        const auto shard = static_cast<std::uint64_t>(owner);
        PayloadWriter out(coding_, exchange_.payload(i), exchange_.payload_capacity(), pieces(chunk));
        if (pieces(chunk) > 0) {
          out.add(tensor_, at(tensor_.input, shard * cut_.count + cut_.begin(chunk), coding_.item),
                  cut_.size(chunk), shard * stride_ + cut_.begin(chunk), map_.get());
        }
        frame_.stats().nonfinite = frame_.stats().nonfinite || out.nonfinite();
        exchange_.seal(i, out.header(1, chunk));
        exchange_.send(owner, i);
      }
    }
    exchange_.flush();
  }

  void reduce(std::uint32_t chunk) {
    const Incoming* messages = exchange_.receive_from_all();
    const Timer timer(frame_.stats().decode_s);
    const auto count = static_cast<std::size_t>(cut_.size(chunk));
    frame_.readers.clear();
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      Exchange::require(messages[i], 1, chunk, count);
      frame_.readers.emplace_back(coding_, messages[i], pieces(chunk));
      if (messages[i].header.has(kFlagNonFinite)) frame_.stats().nonfinite = true;
    }
    if (count > 0) {
      const auto own_begin = static_cast<std::uint64_t>(frame_.rank()) * cut_.count + cut_.begin(chunk);
      const void* own = at(tensor_.input, own_begin, coding_.item);
      void* out = at(tensor_.output, cut_.begin(chunk), coding_.item);
      const bool nonfinite = coding_.raw() ? reduce_raw(messages, own, out, count)
                                           : reduce_encoded(messages, own, out, count, cut_.begin(chunk));
      frame_.stats().nonfinite = frame_.stats().nonfinite || nonfinite;
    }
    for (const PayloadReader& reader : frame_.readers) reader.done();
    exchange_.release();
  }

  bool reduce_raw(const Incoming* messages, const void* own, void* out, std::size_t count) {
    std::vector<const void*>& inputs = frame_.raw_inputs;
    inputs.resize(static_cast<std::size_t>(frame_.size()));
    inputs[static_cast<std::size_t>(frame_.rank())] = own;
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      inputs[static_cast<std::size_t>(messages[i].peer)] = frame_.readers[i].next(count).data;
    }
    const bool zero = frame_.call().block().spec().nonfinite == codec::NonFinite::kZero;
    return codec::raw_reduce(inputs.data(), frame_.size(), coding_.dtype, count, frame_.divisor(), zero, out,
                             frame_.isa);
  }

  bool reduce_encoded(const Incoming* messages, const void* own, void* out, std::size_t count,
                      std::uint64_t begin) {
    frame_.arrivals.resize(static_cast<std::size_t>(frame_.size()));
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      frame_.arrivals[static_cast<std::size_t>(messages[i].peer)] = frame_.readers[i].next(count);
    }
    codec::ReduceJob job;
    job.own = own;
    job.dtype = coding_.dtype;
    job.arrivals = frame_.arrivals.data();
    job.ranks = frame_.size();
    job.own_rank = frame_.rank();
    job.count = count;
    job.divisor = frame_.divisor();
    job.map = map_.get();
    job.position.element = static_cast<std::uint64_t>(frame_.rank()) * stride_ + begin;
    job.out = out;
    return coding_.block->reduce_encode(job).nonfinite;
  }

  Frame& frame_;
  Exchange& exchange_;
  const Coding coding_;
  const Cut cut_;
  const TensorArg& tensor_;
  const std::uint64_t stride_;  // between shards, in random streams and residuals
  const ShardMap map_;
};

}  // namespace

void reduce_scatter(Frame& frame) {
  Call& call = frame.call();
  TensorArg& tensor = call.tensors[0];
  const auto ranks = static_cast<std::uint64_t>(frame.size());
  const Coding raw(nullptr, call.dtype);
  const Coding coded(&call.block(), call.dtype);
  const std::uint64_t shard_bytes = raw.bound(tensor.count);
  const bool is_raw = goes_raw(call.block(), frame.size(), ranks * shard_bytes, (ranks - 1) * shard_bytes,
                               coded.bound(tensor.count) < shard_bytes);
  const Coding& coding = is_raw ? raw : coded;
  frame.stats().raw_path = is_raw;
  const Cut cut = make_cut(tensor.count, coding.bound(codec::kTile), frame.exchange.messages());
  begin_call(frame, agreement_hash(call), ranks * coding.bound(tensor.count));
  opening(frame, !is_raw,
          call.raises_nonfinite() && has_nonfinite(tensor.input, call.dtype, ranks * tensor.count));
  expect_from_all(frame, cut.chunks);
  if (!is_raw) start_key(call, tensor, frame.rank());
  ReduceScatter(frame, coding, cut).run();
}

}  // namespace gcomm::collective
