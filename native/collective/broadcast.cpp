// The root sends everything to everybody. The other pairs exchange headers, so that all see whether they agree.
//
// What travels unencoded is what the root has: its memory is only read then, and may be read-only.
#include <algorithm>

#include "collective/frame.h"

namespace gcomm::collective {
namespace {

class Broadcast {
 public:
  Broadcast(Frame& frame, const Coding& coding, const Cut& cut)
      : frame_(frame),
        exchange_(frame.exchange),
        coding_(coding),
        cut_(cut),
        tensor_(frame.call().tensors[0]),
        root_(frame.call().root),
        root_decodes_(!coding.raw() || coding.zero) {}

  void run() {
    const bool sending = frame_.rank() == root_;
    for (const int peer : exchange_.peers()) exchange_.expect(peer, peer == root_ ? cut_.chunks : 1);
    exchange_.prepare_sends(
        sending ? std::min(kSendSteps, cut_.chunks) : 1, 1,
        kHeaderBytes + (sending ? coding_.bound(cut_.size(0)) + coding_.table_bytes(1) : 0));
    for (std::uint32_t chunk = 0; chunk < cut_.chunks; ++chunk) {
      if (sending || chunk == 0) send(chunk);
      if (chunk == 0) {
        first();
      } else if (sending) {
        decode_own(chunk);
      } else {
        exchange_.flush();
        decode(*exchange_.receive(&root_, 1), chunk);
      }
      exchange_.release();
    }
  }

 private:
  std::size_t pieces(std::uint32_t chunk) const { return cut_.size(chunk) > 0 ? 1 : 0; }

  void send(std::uint32_t chunk) {
    exchange_.begin_step();
    Header header;
    header.kind = Kind::kHeaderOnly;
    header.phase = 1;
    if (frame_.rank() == root_) {
      const Timer timer(frame_.stats().encode_s);
      PayloadWriter out(coding_, exchange_.payload(0), exchange_.payload_capacity(), pieces(chunk));
      if (pieces(chunk) > 0) {
        out.add(tensor_, at(tensor_.input, cut_.begin(chunk), coding_.item), cut_.size(chunk),
                cut_.begin(chunk));
      }
      if (out.nonfinite()) frame_.stats().nonfinite = true;
      header = out.header(1, chunk);
    }
    exchange_.seal(0, header);
    exchange_.send_to_all(0);
    exchange_.flush();
  }

  void first() {
    const Incoming* messages = exchange_.receive_from_all();
    for (std::size_t i = 0; i < exchange_.peers().size(); ++i) {
      if (messages[i].peer == root_) {
        decode(messages[i], 0);
      } else {
        Exchange::require(messages[i], 1, 0, 0);
      }
    }
    if (frame_.rank() == root_) decode_own(0);
  }

  void decode_own(std::uint32_t chunk) {
    if (root_decodes_) decode(exchange_.sent(0, 0), chunk);
  }

  void decode(const Incoming& message, std::uint32_t chunk) {
    Exchange::require(message, 1, chunk, cut_.size(chunk));
    const Timer timer(frame_.stats().decode_s);
    if (message.header.has(kFlagNonFinite)) frame_.stats().nonfinite = true;
    PayloadReader in(coding_, message, pieces(chunk));
    if (pieces(chunk) > 0) {
      in.decode_next(at(tensor_.output, cut_.begin(chunk), coding_.item), cut_.size(chunk));
    }
    in.done();
  }

  Frame& frame_;
  Exchange& exchange_;
  const Coding coding_;
  const Cut cut_;
  const TensorArg& tensor_;
  const int root_;
  const bool root_decodes_;
};

}  // namespace

void broadcast(Frame& frame) {
  Call& call = frame.call();
  TensorArg& tensor = call.tensors[0];
  const bool sending = frame.rank() == call.root;
  const Coding coding = movement_coding(call, tensor.count, frame.size());
  frame.stats().raw_path = coding.raw();
  const Cut cut = make_cut(tensor.count, coding.bound(codec::kTile), frame.exchange.messages());
  begin_call(frame, agreement_hash(call), coding.bound(tensor.count));
  opening(frame, !coding.raw(),
          sending && call.raises_nonfinite() && has_nonfinite(tensor.input, call.dtype, tensor.count));
  if (sending && !coding.raw()) start_key(call, tensor, frame.rank());
  Broadcast(frame, coding, cut).run();
}

}  // namespace gcomm::collective
