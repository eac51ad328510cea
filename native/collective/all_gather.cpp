// Everybody sends its part to everybody. What is encoded once is decoded alike everywhere, by its owner too.
#include <algorithm>

#include "collective/frame.h"

namespace gcomm::collective {
namespace {

class AllGather {
 public:
  AllGather(Frame& frame, const Coding& coding, const Cut& cut)
      : frame_(frame),
        exchange_(frame.exchange),
        coding_(coding),
        cut_(cut),
        tensor_(frame.call().tensors[0]) {}

  void run() {
    const std::uint32_t ahead = std::min(kLookahead, cut_.chunks - 1);
    exchange_.prepare_sends(std::min(kSendSteps, cut_.chunks), 1,
                            kHeaderBytes + coding_.bound(cut_.size(0)) + coding_.table_bytes(1));
    for (std::uint32_t step = 0; step < cut_.chunks + ahead; ++step) {
      if (step < cut_.chunks) send(step);
      // The first arrivals tell whether all agree; before, nothing is written.
      if (step >= ahead) receive(step - ahead, std::min(step, cut_.chunks - 1) - (step - ahead));
    }
  }

 private:
  std::size_t pieces(std::uint32_t chunk) const { return cut_.size(chunk) > 0 ? 1 : 0; }
  std::uint8_t* output(int owner, std::uint32_t chunk) const {
    return at(tensor_.output, static_cast<std::uint64_t>(owner) * cut_.count + cut_.begin(chunk), coding_.item);
  }

  void send(std::uint32_t chunk) {
    exchange_.begin_step();
    {
      const Timer timer(frame_.stats().encode_s);
      PayloadWriter out(coding_, exchange_.payload(0), exchange_.payload_capacity(), pieces(chunk));
      if (pieces(chunk) > 0) {
        out.add(tensor_, at(tensor_.input, cut_.begin(chunk), coding_.item), cut_.size(chunk),
                cut_.begin(chunk));
      }
      frame_.stats().nonfinite = frame_.stats().nonfinite || out.nonfinite();
      exchange_.seal(0, out.header(1, chunk));
    }
    exchange_.send_to_all(0);
    exchange_.flush();
  }

  void receive(std::uint32_t chunk, std::uint32_t steps_ago) {
    const Incoming* messages = exchange_.receive_from_all();
    const Timer timer(frame_.stats().decode_s);
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      Exchange::require(messages[i], 1, chunk, cut_.size(chunk));
      decode(messages[i], chunk);
    }
    exchange_.release();
    decode(exchange_.sent(0, steps_ago), chunk);
  }

  void decode(const Incoming& message, std::uint32_t chunk) {
    if (message.header.has(kFlagNonFinite)) frame_.stats().nonfinite = true;
    PayloadReader in(coding_, message, pieces(chunk));
    if (pieces(chunk) > 0) in.decode_next(output(message.peer, chunk), cut_.size(chunk));
    in.done();
  }

  Frame& frame_;
  Exchange& exchange_;
  const Coding coding_;
  const Cut cut_;
  const TensorArg& tensor_;
};

}  // namespace

void all_gather(Frame& frame) {
  Call& call = frame.call();
  TensorArg& tensor = call.tensors[0];
  const Coding coding = movement_coding(call, tensor.count, frame.size());
  frame.stats().raw_path = coding.raw();
  const Cut cut = make_cut(tensor.count, coding.bound(codec::kTile), frame.exchange.messages());
  begin_call(frame, agreement_hash(call), coding.bound(tensor.count));
  opening(frame, !coding.raw(),
          call.raises_nonfinite() && has_nonfinite(tensor.input, call.dtype, tensor.count));
  expect_from_all(frame, cut.chunks);
  if (!coding.raw()) start_key(call, tensor, frame.rank());
  AllGather(frame, coding, cut).run();
}

}  // namespace gcomm::collective
