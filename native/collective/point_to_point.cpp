#include "collective/point_to_point.h"

#include <algorithm>
#include <string>

#include "collective/frame.h"

namespace gcomm::collective {
namespace {

constexpr std::size_t kDepth = 3;  // receives kept posted
constexpr std::uint8_t kOpening = 0;
constexpr std::uint8_t kMain = 1;

SharedError nonfinite_error(const Call& call) {
  const std::string sender = std::to_string(call.root);
  return SharedError(Code::kNonFinite, "nonfinite=raise: what rank " + sender + " sends holds a NaN or an Inf",
                     call.root);
}

// Both sides first exchange headers where a failure must leave the codec's state or the output as it was.
bool opens(const Call& call, const Coding& coding) {
  return call.raises_nonfinite() || (!coding.raw() && call.codec->error_feedback());
}

}  // namespace

PointToPoint::PointToPoint(Transport& transport, int peer, bool sending, ByteCounter& workspace)
    : exchange_(transport, sending ? Lane::kP2p : Lane::kAck, sending ? Lane::kAck : Lane::kP2p, {peer},
                workspace),
      peer_(peer) {}

void PointToPoint::run(Call& call) {
  exchange_.set_call(call);
  try {
    call.sending ? send(call) : receive(call);
  } catch (const SharedError&) {
    rewind_keys(call);
    exchange_.end();
    throw;
  }
  exchange_.end();
}

void PointToPoint::begin(const Coding& coding, std::uint64_t messages) {
  Call& call = exchange_.call();
  call.stats.raw_path = coding.raw();
  exchange_.begin(agreement_hash(call), kDepth);
  exchange_.expect(peer_, messages);
}

void PointToPoint::send(Call& call) {
  TensorArg& tensor = call.tensors[0];
  const Coding coding = movement_coding(call, tensor.count, 2);
  const Cut cut = make_cut(tensor.count, coding.bound(codec::kTile), exchange_.messages());
  const bool opening = opens(call, coding);
  begin(coding, opening ? 2 : 1);
  if (opening) {
    const bool nonfinite = call.raises_nonfinite() && has_nonfinite(tensor.input, call.dtype, tensor.count);
    send_header(Kind::kHeaderOnly, kOpening, nonfinite);
    receive_header(Kind::kAck, kOpening);
    if (nonfinite) throw nonfinite_error(call);
  }
  if (!coding.raw()) start_key(call, tensor, call.root);
  exchange_.prepare_sends(std::min(kSendSteps, cut.chunks), 1,
                          kHeaderBytes + coding.bound(cut.size(0)) + coding.table_bytes(1));
  for (std::uint32_t chunk = 0; chunk < cut.chunks; ++chunk) {
    exchange_.begin_step();
    {
      const Timer timer(call.stats.encode_s);
      const std::size_t pieces = cut.size(chunk) > 0 ? 1 : 0;
      PayloadWriter out(coding, exchange_.payload(0), exchange_.payload_capacity(), pieces);
      if (pieces > 0) {
        out.add(tensor, at(tensor.input, cut.begin(chunk), coding.item), cut.size(chunk), cut.begin(chunk));
      }
      call.stats.nonfinite = call.stats.nonfinite || out.nonfinite();
      exchange_.seal(0, out.header(kMain, chunk));
    }
    exchange_.send(peer_, 0);
    exchange_.flush();
  }
  receive_header(Kind::kAck, kMain);
}

void PointToPoint::receive(Call& call) {
  const TensorArg& tensor = call.tensors[0];
  const Coding coding = movement_coding(call, tensor.count, 2);
  const Cut cut = make_cut(tensor.count, coding.bound(codec::kTile), exchange_.messages());
  const bool opening = opens(call, coding);
  begin(coding, cut.chunks + (opening ? 1u : 0u));
  if (opening) {
    exchange_.flush();
    const bool nonfinite = receive_header(Kind::kHeaderOnly, kOpening);
    send_header(Kind::kAck, kOpening, nonfinite);
    if (nonfinite) throw nonfinite_error(call);
  }
  for (std::uint32_t chunk = 0; chunk < cut.chunks; ++chunk) {
    exchange_.flush();
    const Incoming message = *exchange_.receive(&peer_, 1);
    Exchange::require(message, kMain, chunk, cut.size(chunk));
    {
      const Timer timer(call.stats.decode_s);
      if (message.header.has(kFlagNonFinite)) call.stats.nonfinite = true;
      const std::size_t pieces = cut.size(chunk) > 0 ? 1 : 0;
      PayloadReader in(coding, message, pieces);
      if (pieces > 0) in.decode_next(at(tensor.output, cut.begin(chunk), coding.item), cut.size(chunk));
      in.done();
    }
    exchange_.release();
  }
  send_header(Kind::kAck, kMain, false);
}

void PointToPoint::send_header(Kind kind, std::uint8_t phase, bool nonfinite) {
  exchange_.prepare_sends(1, 1, kHeaderBytes);
  exchange_.begin_step();
  Header header;
  header.kind = kind;
  header.phase = phase;
  if (nonfinite) header.flags |= kFlagNonFinite;
  exchange_.seal(0, header);
  exchange_.send(peer_, 0);
  exchange_.flush();
}

bool PointToPoint::receive_header(Kind kind, std::uint8_t phase) {
  const Incoming message = *exchange_.receive(&peer_, 1);
  Exchange::require(message, phase, 0, 0);
  if (message.header.kind != kind) {
    throw Error(Code::kPeerLost,
                "rank " + std::to_string(peer_) + " is out of step: an unexpected kind of message", peer_);
  }
  exchange_.release();
  return message.header.has(kFlagNonFinite);
}

}  // namespace gcomm::collective
