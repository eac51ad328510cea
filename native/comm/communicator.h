// The composition root: a transport, the lanes that work on it, and the codecs that live in it.
//
// All members may be called from several threads at once, but for the destructor. What a call's pointers name
// must live until its work completes; everything else is copied.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "collective/engine.h"
#include "collective/point_to_point.h"
#include "comm/lane.h"
#include "comm/work.h"
#include "transport/transport.h"

namespace gcomm::comm {

struct TensorView {
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t count = 0;
  std::string_view key;
  std::uint64_t rows = 0;  // 0: flat
  std::uint64_t cols = 0;
};

using Codec = std::shared_ptr<collective::StatefulCodec>;

// Throws kCodec for a text that is none.
Codec make_codec(std::string_view text, codec::Isa isa);

struct CommStats {
  std::uint64_t calls = 0;  // completed, well or not
  collective::CallStats sums;
  std::uint64_t raw_path_calls = 0;
  std::uint64_t plans = 0;
  std::uint64_t workspace_bytes = 0;
};

enum class LinkPattern : std::uint8_t { kPingPong = 0, kOneWay = 1, kBidirectional = 2 };

class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, double timeout_s, codec::Isa isa);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  // Closes. Not in a forked child: see forked().
  ~Communicator();

  int rank() const noexcept { return transport_->rank(); }
  int size() const noexcept { return transport_->size(); }
  const char* transport_name() const noexcept { return transport_->name(); }
  const char* medium(int peer) const noexcept { return transport_->medium(peer); }
  std::size_t slot_bytes() const noexcept { return transport_->slot_bytes(); }
  double timeout_s() const noexcept { return timeout_s_; }
  codec::Isa isa() const noexcept { return isa_; }

  // gcomm.h says what each does. timeout_s: 0 is the communicator's own. They throw kInvalid for wrong
  // arguments and kClosed, having sent nothing.
  WorkRef all_reduce(const TensorView* tensors, std::size_t n, DType dtype, collective::Op op,
                     const Codec& codec, double timeout_s);
  WorkRef reduce_scatter(const TensorView& tensor, DType dtype, collective::Op op, const Codec& codec,
                         double timeout_s);
  WorkRef all_gather(const TensorView& tensor, DType dtype, const Codec& codec, double timeout_s);
  WorkRef all_to_all(const TensorView& tensor, const std::uint64_t* send_counts,
                     const std::uint64_t* recv_counts, DType dtype, const Codec& codec, double timeout_s);
  WorkRef broadcast(const TensorView& tensor, DType dtype, int root, const Codec& codec, double timeout_s);
  WorkRef send(const TensorView& tensor, DType dtype, int peer, const Codec& codec, double timeout_s);
  WorkRef recv(const TensorView& tensor, DType dtype, int peer, const Codec& codec, double timeout_s);
  WorkRef barrier(double timeout_s);

  // Blocks. See gcomm_link_probe().
  void link_probe(int peer, bool initiator, LinkPattern pattern, std::uint64_t bytes, std::uint32_t iterations,
                  double* seconds);

  // The codec of this text that lives here, made on first use.
  const Codec& codec(std::string_view text);

  CommStats stats() const;

  // Waits for queued work, at most the default timeout, then ends the threads and the transport. Idempotent.
  void close();
  // Fails everything pending, here and on the peers.
  void abort(std::string_view why);
  // This object was made by a parent of this process: its threads are not here, and everything throws kClosed.
  bool forked() const noexcept;

 private:
  struct PeerLanes {
    std::unique_ptr<collective::PointToPoint> engine;
    std::unique_ptr<Lane> lane;
  };
  struct Probe;

  void require_open() const;
  WorkRef start(collective::Verb verb, DType dtype, const Codec& codec, double timeout_s);
  void set_tensors(collective::Call& call, const TensorView* tensors, std::size_t n);
  void acquire_states(collective::Call& call, Lane& lane);
  WorkRef queue(Lane& lane, WorkRef work);
  PeerLanes& peer_lanes(int peer, bool sending);
  Codec exact_codec(DType dtype) const;

  template <typename Run>
  void run(Work& work, Run&& engine_run);
  void finish(Work& work, Code code, std::string_view text, int peer);
  void fail(const Error& why) noexcept;

  const std::unique_ptr<Transport> transport_;
  const double timeout_s_;
  const codec::Isa isa_;
  const unsigned generation_;
  collective::ByteCounter workspace_{0};
  const std::shared_ptr<WorkPool> pool_ = std::make_shared<WorkPool>();
  std::array<Codec, 3> exact_;  // what sums without a codec travel in, by dtype

  mutable std::mutex mutex_;
  std::map<std::string, Codec, std::less<>> codecs_;  // by the text that was asked for
  bool closing_ = false;
  std::optional<Error> failure_;  // the first; closed for good
  CommStats stats_;
  std::vector<PeerLanes> senders_;  // by peer
  std::vector<PeerLanes> receivers_;

  std::mutex close_mutex_;
  bool closed_ = false;

  collective::Engine engine_;
  Lane lane_;
};

}  // namespace gcomm::comm
