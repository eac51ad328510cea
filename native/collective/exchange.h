// The traffic of one lane, seen from one call: batches of sends and receives, headers written and checked, and
// what to do when ranks turn out to have called differently.
//
// Messages from a peer are taken in the order in which it posted them. The first receive() of a call takes one
// message from every peer, and nothing that waits for the completion of sends may come before it: then every
// rank sees by itself whether all agree, and no rank waits for one that has gone another way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collective/call.h"
#include "collective/cut.h"
#include "collective/header.h"
#include "collective/slots.h"
#include "transport/transport.h"

namespace gcomm::collective {

struct Incoming {
  int peer = -1;
  Header header;
  const std::uint8_t* payload = nullptr;
};

class Exchange {
 public:
  // peers: in the order in which messages go out to them. total counts the lane's memory.
  Exchange(Transport& transport, Lane send_lane, Lane receive_lane, std::vector<int> peers, ByteCounter& total);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const noexcept { return transport_.rank(); }
  int size() const noexcept { return transport_.size(); }
  std::size_t slot_bytes() const noexcept { return transport_.slot_bytes(); }
  Messages messages() const noexcept { return {transport_.slot_bytes(), transport_.wanted_messages()}; }
  const std::vector<int>& peers() const noexcept { return peers_; }
  Call& call() noexcept { return *call_; }
  CallStats& stats() noexcept { return call_->stats; }

  // A call: set_call, begin, steps, end. end() also follows a SharedError; after any other error the lane is
  // not used again. depth: receives kept posted for each peer.
  void set_call(Call& call) noexcept { call_ = &call; }
  void begin(std::uint64_t hash, std::size_t depth);
  void end();

  // Announces that the call will bring `messages` more messages from peer.
  void expect(int peer, std::uint64_t messages) { lanes_[static_cast<std::size_t>(peer)].expected += messages; }

  // capacity: of one buffer, header included.
  void prepare_sends(std::size_t steps, std::size_t per_step, std::size_t capacity);
  void begin_step();  // waits until the buffers of this step are free
  // Where the payload goes of the step's index-th message.
  std::uint8_t* payload(std::size_t index) { return ring_.buffer(index) + kHeaderBytes; }
  std::size_t payload_capacity() const noexcept { return ring_.capacity() - kHeaderBytes; }
  // Completes the header of the step's index-th message. payload_bytes, kind, flags, count, phase and chunk are
  // the caller's; one message may then go to several peers. extra: elements of header.count that an
  // uncompressed call would not send.
  void seal(std::size_t index, Header header, std::uint64_t extra = 0);
  void send(int peer, std::size_t index);
  void send_to_all(std::size_t index);
  // A message of this step or of one a little while ago, as its receivers see it.
  Incoming sent(std::size_t index, std::size_t steps_ago);
  // Starts what was queued, and tops up the posted receives, in one batch.
  void flush();

  // One message from each of n peers, checked against the call, in the order of `from`. Valid until release().
  const Incoming* receive(const int* from, std::size_t n);
  const Incoming* receive_from_all() { return receive(peers_.data(), peers_.size()); }
  // The slots of everything received may be used again.
  void release();

  // Throws unless the message is the one that the plan has here.
  static void require(const Incoming& message, std::uint8_t phase, std::uint32_t chunk, std::uint64_t count);

  // No receive is left over from a disagreement.
  bool clean() const noexcept {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const PeerLane& peer) { return peer.posted.empty(); });
  }

  // Tells every peer what was called here, hears the same from each, and throws the SharedError that all throw.
  [[noreturn]] void disagree();

 private:
  struct Posted {
    Ticket ticket;
    std::uint8_t* slot;
  };
  struct Sealed {
    std::size_t bytes;      // of the message
    std::size_t raw_bytes;  // of its elements
  };
  struct PeerLane {
    std::vector<Posted> posted;  // oldest first; after a disagreement some are left for the next call
    std::uint64_t expected = 0;  // messages of this call not yet taken
    std::string described;       // the peer's own words, once heard in this call
    bool heard = false;
  };
  PeerLane& lane(int peer) { return lanes_[static_cast<std::size_t>(peer)]; }

  void wait(const Ticket* tickets, std::size_t n, std::size_t* lengths);
  void wait_sends(std::vector<Ticket>& tickets);
  void queue_receive(int peer);
  void queue_send(int peer, std::uint8_t* message, std::size_t bytes);
  void post_queued();
  void drain(int peer);
  // Nothing was asked of the transport that it may still be at.
  bool idle() noexcept;
  void hear(int peer, const Header& header, const std::uint8_t* payload);

  Transport& transport_;
  const Lane send_lane_;
  const Lane receive_lane_;
  const std::vector<int> peers_;
  SlotPool slots_;
  SendRing ring_;
  AlignedBuffer words_;  // a message of kind 3
  std::vector<PeerLane> lanes_;

  Call* call_ = nullptr;
  std::uint64_t sequence_ = 0;
  std::uint64_t hash_ = 0;
  std::size_t depth_ = 1;

  // Reused; they reach their final size in the first call of a kind.
  std::vector<TransportOp> sends_;
  std::vector<TransportOp> receives_;
  std::vector<TransportOp> batch_;
  std::vector<Ticket> tickets_;
  std::vector<std::size_t> lengths_;
  std::vector<Sealed> sealed_;  // the step's messages, by index
  std::vector<Incoming> incoming_;
  std::vector<std::uint8_t*> held_;
};

}  // namespace gcomm::collective
