#include "collective/exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

namespace gcomm::collective {
namespace {

// Of a description that travels; describe() stays far below.
constexpr std::size_t kLongestDescription = 8192;

[[noreturn]] void out_of_step(int peer, const std::string& what) {
  throw Error(Code::kPeerLost, "rank " + std::to_string(peer) + " is out of step: " + what, peer);
}

}  // namespace

Exchange::Exchange(Transport& transport, Lane send_lane, Lane receive_lane, std::vector<int> peers,
                   ByteCounter& total)
    : transport_(transport),
      send_lane_(send_lane),
      receive_lane_(receive_lane),
      peers_(std::move(peers)),
      slots_(transport.slot_bytes(), total),
      ring_(total),
      words_(kHeaderBytes + kLongestDescription),
      lanes_(static_cast<std::size_t>(transport.size())) {
  total += words_.size();
}

Exchange::~Exchange() {
  if (transport_.releases_buffers_on_failure() || idle()) return;
  slots_.leak();
  ring_.leak();
  words_.leak();
}

bool Exchange::idle() noexcept {
  const auto empty = [](const std::vector<Ticket>& tickets) { return tickets.empty(); };
  const std::vector<std::vector<Ticket>>& sent = ring_.all_tickets();
  return clean() && receives_.empty() && sends_.empty() && std::all_of(sent.begin(), sent.end(), empty);
}

void Exchange::begin(std::uint64_t hash, std::size_t depth) {
  hash_ = hash;
  depth_ = depth;
  for (const int peer : peers_) {
    lane(peer).expected = 0;
    lane(peer).heard = false;
  }
}

void Exchange::end() {
  for (std::vector<Ticket>& tickets : ring_.all_tickets()) wait_sends(tickets);
  release();
  ++sequence_;
}

void Exchange::prepare_sends(std::size_t steps, std::size_t per_step, std::size_t capacity) {
  for (std::vector<Ticket>& tickets : ring_.all_tickets()) wait_sends(tickets);
  ring_.prepare(steps, per_step, capacity);
}

void Exchange::begin_step() { wait_sends(ring_.next_step()); }

void Exchange::seal(std::size_t index, Header header, std::uint64_t extra) {
  header.source = rank();
  header.sequence = sequence_;
  header.hash = hash_;
  write_header(header, ring_.buffer(index));
  if (sealed_.size() <= index) sealed_.resize(index + 1);
  sealed_[index] = {kHeaderBytes + header.payload_bytes, (header.count - extra) * dtype_size(call_->dtype)};
}

void Exchange::send(int peer, std::size_t index) {
  queue_send(peer, ring_.buffer(index), sealed_[index].bytes);
  stats().raw_bytes += sealed_[index].raw_bytes;
}

void Exchange::queue_send(int peer, std::uint8_t* message, std::size_t bytes) {
  sends_.push_back({TransportOp::Kind::kSend, send_lane_, peer, message, bytes});
  stats().wire_bytes += bytes + transport_.overhead_bytes();
}

void Exchange::send_to_all(std::size_t index) {
  for (const int peer : peers_) send(peer, index);
}

Incoming Exchange::sent(std::size_t index, std::size_t steps_ago) {
  const std::uint8_t* message = ring_.buffer(index, steps_ago);
  return {rank(), parse_header(message), message + kHeaderBytes};
}

void Exchange::queue_receive(int peer) {
  receives_.push_back({TransportOp::Kind::kRecv, receive_lane_, peer, slots_.take(), slot_bytes()});
}

void Exchange::flush() {
  for (const int peer : peers_) {
    const std::size_t wanted = std::min<std::uint64_t>(depth_, lane(peer).expected);
    for (std::size_t n = lane(peer).posted.size(); n < wanted; ++n) queue_receive(peer);
  }
  post_queued();
}

void Exchange::post_queued() {
  if (receives_.empty() && sends_.empty()) return;
  batch_.assign(receives_.begin(), receives_.end());
  batch_.insert(batch_.end(), sends_.begin(), sends_.end());
  tickets_.resize(batch_.size());
  transport_.post(batch_.data(), batch_.size(), tickets_.data());
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    lane(receives_[i].peer).posted.push_back({tickets_[i], static_cast<std::uint8_t*>(receives_[i].data)});
  }
  ring_.tickets().insert(ring_.tickets().end(),
                         tickets_.begin() + static_cast<std::ptrdiff_t>(receives_.size()), tickets_.end());
  receives_.clear();
  sends_.clear();
}

void Exchange::wait(const Ticket* tickets, std::size_t n, std::size_t* lengths) {
  const auto before = Clock::now();
  transport_.wait_all(tickets, n, lengths, call_->deadline);
  stats().comm_s += std::chrono::duration<double>(Clock::now() - before).count();
}

void Exchange::wait_sends(std::vector<Ticket>& tickets) {
  if (tickets.empty()) return;
  wait(tickets.data(), tickets.size(), nullptr);
  tickets.clear();
}

const Incoming* Exchange::receive(const int* from, std::size_t n) {
  if (n == 0) return nullptr;
  // A step that sent nothing topped nothing up; where few receives are kept posted, one may be missing.
  if (std::any_of(from, from + n, [this](int peer) { return lane(peer).posted.empty(); })) flush();
  tickets_.resize(n);
  lengths_.resize(n);
  incoming_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (lane(from[i]).posted.empty()) throw Error(Code::kInternal, "a message was awaited and never asked for");
    tickets_[i] = lane(from[i]).posted.front().ticket;
  }
  wait(tickets_.data(), n, lengths_.data());
  bool agreed = true;
  for (std::size_t i = 0; i < n; ++i) {
    const int peer = from[i];
    std::uint8_t* slot = lane(peer).posted.front().slot;
    lane(peer).posted.erase(lane(peer).posted.begin());
    lane(peer).expected -= std::min<std::uint64_t>(1, lane(peer).expected);
    held_.push_back(slot);
    const Header header = read_header(slot, lengths_[i], slot_bytes(), peer);
    if (header.sequence != sequence_) {
      out_of_step(peer, "a message of call " + std::to_string(header.sequence) + " arrived in call " +
                            std::to_string(sequence_));
    }
    incoming_[i] = {peer, header, slot + kHeaderBytes};
    if (header.kind == Kind::kDisagreement) hear(peer, header, slot + kHeaderBytes);
    agreed = agreed && header.kind != Kind::kDisagreement && header.hash == hash_;
  }
  if (!agreed) disagree();
  return incoming_.data();
}

void Exchange::release() {
  for (std::uint8_t* slot : held_) slots_.give_back(slot);
  held_.clear();
}

void Exchange::require(const Incoming& message, std::uint8_t phase, std::uint32_t chunk, std::uint64_t count) {
  const Header& header = message.header;
  if (header.phase == phase && header.chunk == chunk && header.count == count) return;
  const auto part = [](unsigned p, std::uint64_t c, std::uint64_t n) {
    return "phase " + std::to_string(p) + ", chunk " + std::to_string(c) + ", " + std::to_string(n) +
           " elements";
  };
  out_of_step(message.peer, "it sent " + part(header.phase, header.chunk, header.count) + "; expected was " +
                                part(phase, chunk, count));
}

void Exchange::hear(int peer, const Header& header, const std::uint8_t* payload) {
  lane(peer).described.assign(reinterpret_cast<const char*>(payload), header.payload_bytes);
  lane(peer).heard = true;
}

// What is still under way from peer belongs to a call that will not happen; its words come last.
void Exchange::drain(int peer) {
  while (!lane(peer).heard) {
    if (lane(peer).posted.empty()) {
      queue_receive(peer);
      post_queued();
    }
    const Posted posted = lane(peer).posted.front();
    std::size_t length = 0;
    wait(&posted.ticket, 1, &length);
    lane(peer).posted.erase(lane(peer).posted.begin());
    held_.push_back(posted.slot);
    const Header header = read_header(posted.slot, length, slot_bytes(), peer);
    if (header.sequence != sequence_) out_of_step(peer, "it has left a call that ranks disagree on");
    if (header.kind == Kind::kDisagreement) hear(peer, header, posted.slot + kHeaderBytes);
    release();
  }
}

void Exchange::disagree() {
  release();
  sends_.clear();
  std::string own = describe(*call_);
  own.resize(std::min(own.size(), kLongestDescription));
  Header header;
  header.kind = Kind::kDisagreement;
  header.source = rank();
  header.sequence = sequence_;
  header.hash = hash_;
  header.payload_bytes = static_cast<std::uint32_t>(own.size());
  write_header(header, words_.data());
  std::memcpy(words_.data() + kHeaderBytes, own.data(), own.size());
  for (const int peer : peers_) {
    queue_send(peer, words_.data(), kHeaderBytes + own.size());
    if (!lane(peer).heard && lane(peer).posted.empty()) queue_receive(peer);
  }
  post_queued();
  std::vector<std::pair<int, std::string>> described;
  described.emplace_back(rank(), std::move(own));
  for (const int peer : peers_) {
    drain(peer);
    described.emplace_back(peer, lane(peer).described);
    lane(peer).expected = 0;
  }
  std::sort(described.begin(), described.end());
  throw mismatch(described);
}

}  // namespace gcomm::collective
