// Measures the bare transport on the two lanes of one direction of point to point, in that direction's turn.
#include <algorithm>

#include "base/aligned.h"
#include "comm/communicator.h"

namespace gcomm::comm {
namespace {

constexpr std::size_t kWindow = 4;  // messages under way at a time, each way

}  // namespace

struct Communicator::Probe {
  Transport& transport;
  const collective::PointToPoint& engine;
  int peer;
  bool initiator;
  LinkPattern pattern;
  std::uint64_t bytes;
  std::uint32_t iterations;
  double* seconds;
  Deadline deadline;
  AlignedBuffer outgoing;  // one message
  AlignedBuffer incoming;  // kWindow messages
  bool posted = false;

  gcomm::Lane out() const { return initiator ? gcomm::Lane::kP2p : gcomm::Lane::kAck; }
  gcomm::Lane in() const { return initiator ? gcomm::Lane::kAck : gcomm::Lane::kP2p; }

  static void run(void* context) {
    auto& probe = *static_cast<Probe*>(context);
    if (!probe.engine.clean()) {
      throw collective::SharedError(
          Code::kInvalid, "peer: after ranks disagreed on a send and a recv, their link cannot be measured");
    }
    for (std::uint32_t i = 0; i < probe.iterations; ++i) {
      const auto before = Clock::now();
      probe.round();
      if (probe.initiator) probe.seconds[i] = std::chrono::duration<double>(Clock::now() - before).count();
    }
  }

  void round() {
    const std::uint64_t answer = pattern == LinkPattern::kOneWay ? 1 : bytes;
    if (pattern == LinkPattern::kBidirectional) return move(bytes, bytes);
    if (initiator) {
      move(bytes, 0);
      move(0, answer);
    } else {
      move(0, bytes);
      move(answer, 0);
    }
  }

  // Sends and receives so many bytes at the same time, a window of messages after the other. No bytes, no
  // message.
  void move(std::uint64_t sent, std::uint64_t received) {
    const std::uint64_t slot = transport.slot_bytes();
    while (sent > 0 || received > 0) {
      TransportOp ops[2 * kWindow];
      Ticket tickets[2 * kWindow];
      std::size_t n = 0;
      for (std::size_t i = 0; i < kWindow && received > 0; ++i) {
        ops[n++] = {TransportOp::Kind::kRecv, in(), peer, incoming.data() + i * slot, slot};
        received -= std::min(slot, received);
      }
      for (std::size_t i = 0; i < kWindow && sent > 0; ++i) {
        const std::uint64_t length = std::min(slot, sent);
        ops[n++] = {TransportOp::Kind::kSend, out(), peer, outgoing.data(), length};
        sent -= length;
      }
      posted = true;
      transport.post(ops, n, tickets);
      transport.wait_all(tickets, n, nullptr, deadline);
    }
  }
};

void Communicator::link_probe(int peer, bool initiator, LinkPattern pattern, std::uint64_t bytes,
                              std::uint32_t iterations, double* seconds) {
  if (bytes == 0) throw Error(Code::kInvalid, "bytes: 0, expected at least 1");
  if (initiator && seconds == nullptr && iterations > 0) {
    throw Error(Code::kInvalid, "seconds: NULL, expected room for " + std::to_string(iterations) + " times");
  }
  PeerLanes& lanes = peer_lanes(peer, initiator);
  WorkRef work = start(collective::Verb::kPointToPoint, DType::kU8, nullptr, 0);
  Probe probe{*transport_,
              *lanes.engine,
              peer,
              initiator,
              pattern,
              bytes,
              iterations,
              seconds,
              work->call.deadline,
              AlignedBuffer(std::min<std::uint64_t>(bytes, slot_bytes())),
              AlignedBuffer(kWindow * slot_bytes())};
  work->job = &Probe::run;
  work->job_context = &probe;
  const WorkRef running = queue(*lanes.lane, std::move(work));
  running->wait_until(Deadline::max());
  if (running->code() == Code::kOk) return;
  if (probe.posted && !transport_->releases_buffers_on_failure()) {
    probe.outgoing.leak();
    probe.incoming.leak();
  }
  throw Error(running->code(), running->text(), running->peer());
}

}  // namespace gcomm::comm
