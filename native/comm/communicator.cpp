#include "comm/communicator.h"

#include <cmath>
#include <exception>
#include <new>

#include "comm/arguments.h"
#include "comm/env.h"
#include "gift/gift.h"
#include "transport/failures.h"
#include "transport/fork.h"

namespace gcomm::comm {
namespace {

using collective::Call;
using collective::Op;
using collective::SharedError;
using collective::StatefulCodec;
using collective::TensorArg;
using collective::Verb;

const char* const kExactFormats[] = {"fp32", "bf16", "fp16"};  // by dtype

void add(collective::CallStats& sum, const collective::CallStats& call) {
  sum.raw_bytes += call.raw_bytes;
  sum.wire_bytes += call.wire_bytes;
  sum.encode_s += call.encode_s;
  sum.comm_s += call.comm_s;
  sum.decode_s += call.decode_s;
}

// Elements that the residual of a call's tensor covers.
std::uint64_t residual_count(const Call& call, const TensorArg& tensor, int size) {
  switch (call.verb) {
    case Verb::kReduceScatter:
      return collective::round_up_to_tile(tensor.count) * static_cast<std::uint64_t>(size);
    case Verb::kAllToAll: {
      std::uint64_t sum = 0;
      for (const std::uint64_t count : call.send_counts) sum += collective::round_up_to_tile(count);
      return sum;
    }
    default:
      return tensor.count;
  }
}

}  // namespace

Codec make_codec(std::string_view text, codec::Isa isa) {
  return std::make_shared<StatefulCodec>(codec::BlockCodec::make(codec::parse_spec(text), isa),
                                         gift::make_key_transform);
}

Communicator::Communicator(std::unique_ptr<Transport> transport, double timeout_s, codec::Isa isa)
    : transport_(std::move(transport)),
      timeout_s_(timeout_s),
      isa_(isa),
      generation_(fork_generation()),
      senders_(static_cast<std::size_t>(transport_->size())),
      receivers_(static_cast<std::size_t>(transport_->size())),
      engine_(*transport_, isa, workspace_),
      lane_("gcomm-coll", [this](Work& work) { run(work, [this](Call& call) { engine_.run(call); }); }) {
  for (std::size_t i = 0; i < exact_.size(); ++i) {
    exact_[i] = make_codec(kExactFormats[i], isa_);
  }
}

Communicator::~Communicator() {
  try {
    close();
  } catch (const Error&) {  // closed from its own thread: there is nobody to tell
  }
}

bool Communicator::forked() const noexcept { return fork_generation() != generation_; }

void Communicator::require_open() const {
  if (forked()) throw used_after_fork();
  const std::lock_guard lock(mutex_);
  if (failure_) {
    throw Error(Code::kClosed, std::string("the communicator is closed, since: ") + failure_->what(),
                failure_->peer());
  }
  if (closing_) throw communicator_closed();
}

Codec Communicator::exact_codec(DType dtype) const {
  check_reducible(dtype);
  return exact_[static_cast<std::size_t>(dtype)];
}

const Codec& Communicator::codec(std::string_view text) {
  require_open();
  const std::lock_guard lock(mutex_);
  if (const auto found = codecs_.find(text); found != codecs_.end()) return found->second;
  Codec made = make_codec(text, isa_);
  // Other spellings of the same codec share its state.
  const Codec& canonical = codecs_.try_emplace(made->text(), made).first->second;
  return codecs_.try_emplace(std::string(text), canonical).first->second;
}

WorkRef Communicator::start(Verb verb, DType dtype, const Codec& codec, double timeout_s) {
  require_open();
  dtype_info(dtype);
  if (timeout_s != 0) check_timeout_s(timeout_s, "timeout_s");
  WorkRef work = pool_->take();
  Call& call = work->call;
  call.verb = verb;
  call.op = Op::kSum;
  call.dtype = dtype;
  call.root = 0;
  call.peer = -1;
  call.sending = false;
  call.tensor_count = 0;
  call.codec = codec;
  call.deadline = deadline_after(timeout_s != 0 ? timeout_s : timeout_s_);
  return work;
}

void Communicator::set_tensors(Call& call, const TensorView* tensors, std::size_t n) {
  if (call.tensors.size() < n) call.tensors.resize(n);
  call.tensor_count = n;
  for (std::size_t i = 0; i < n; ++i) {
    TensorArg& tensor = call.tensors[i];
    tensor.input = tensors[i].input;
    tensor.output = tensors[i].output;
    tensor.count = tensors[i].count;
    const bool flat = tensors[i].rows == 0;
    tensor.rows = flat ? 1 : tensors[i].rows;
    tensor.cols = flat ? tensor.count : tensors[i].cols;
    tensor.key.assign(tensors[i].key);
    tensor.wire_bytes = 0;
    tensor.raw_bytes = 0;
    tensor.raw_path = false;
    tensor.state = nullptr;
    tensor.counted = false;
  }
}

void Communicator::acquire_states(Call& call, Lane& lane) {
  if (call.codec == nullptr || !call.codec->keeps_state()) return;
  if (call.verb == Verb::kBroadcast && call.root != rank()) return;
  if (call.verb == Verb::kPointToPoint && !call.sending) return;
  const int peer = call.verb == Verb::kPointToPoint ? call.peer : StatefulCodec::kCollectives;
  const std::uint64_t id = StatefulCodec::next_call_id();
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    TensorArg& tensor = call.tensors[i];
    if (tensor.key.empty()) continue;
    tensor.state = call.codec->acquire(tensor.key, peer, &lane, id, residual_count(call, tensor, size()),
                                       tensor.rows, tensor.cols);
  }
}

WorkRef Communicator::queue(Lane& lane, WorkRef work) {
  Call& call = work->call;
  try {
    check_codec(call);
    acquire_states(call, lane);
    // Held while queueing, so that close() finds every work whose caller came before it.
    const std::lock_guard lock(mutex_);
    if (failure_ || closing_) throw communicator_closed();
    lane.submit(work);
  } catch (...) {
    for (std::size_t i = 0; i < call.tensor_count; ++i) {
      if (call.tensors[i].state != nullptr) call.codec->release(call.tensors[i].state, false);
    }
    call.codec.reset();
    throw;
  }
  return work;
}

WorkRef Communicator::all_reduce(const TensorView* tensors, std::size_t n, DType dtype, Op op,
                                 const Codec& codec, double timeout_s) {
  WorkRef work = start(Verb::kAllReduce, dtype, codec != nullptr ? codec : exact_codec(dtype), timeout_s);
  work->call.op = op;
  for (std::size_t i = 0; i < n; ++i) {
    const auto& [input, output, count, key, rows, cols] = tensors[i];
    const auto index = static_cast<std::int64_t>(i);
    check_memory(input, count, 1, dtype, {"tensors", index, ".input"});
    check_memory(output, count, 1, dtype, {"tensors", index, ".output"});
    check_overlap(input, count, output, count, dtype, {"tensors", index, ".output"});
    check_shape(rows, cols, count, {"tensors", index, ".rows"});
  }
  set_tensors(work->call, tensors, n);
  return queue(lane_, std::move(work));
}

WorkRef Communicator::reduce_scatter(const TensorView& tensor, DType dtype, Op op, const Codec& codec,
                                     double timeout_s) {
  WorkRef work = start(Verb::kReduceScatter, dtype, codec != nullptr ? codec : exact_codec(dtype), timeout_s);
  work->call.op = op;
  const auto ranks = static_cast<std::uint64_t>(size());
  check_memory(tensor.input, tensor.count, ranks, dtype, {"input"});
  check_memory(tensor.output, tensor.count, 1, dtype, {"output"});
  const std::uint64_t own = static_cast<std::uint64_t>(rank()) * tensor.count * dtype_size(dtype);
  if (tensor.count > 0 && static_cast<const std::uint8_t*>(tensor.input) + own != tensor.output) {
    const ArgName what = {"output (it may be the caller's shard of input)"};
    check_overlap(tensor.input, ranks * tensor.count, tensor.output, tensor.count, dtype, what);
    if (tensor.input == tensor.output) throw Error(Code::kInvalid, what.text() + ": overlaps another shard");
  }
  check_shape(tensor.rows, tensor.cols, ranks * tensor.count, {"options.rows"});
  set_tensors(work->call, &tensor, 1);
  if (tensor.rows == 0) work->call.tensors[0].cols = ranks * tensor.count;
  return queue(lane_, std::move(work));
}

WorkRef Communicator::all_gather(const TensorView& tensor, DType dtype, const Codec& codec, double timeout_s) {
  WorkRef work = start(Verb::kAllGather, dtype, codec, timeout_s);
  const auto ranks = static_cast<std::uint64_t>(size());
  check_memory(tensor.input, tensor.count, 1, dtype, {"input"});
  check_memory(tensor.output, tensor.count, ranks, dtype, {"output"});
  const std::uint64_t own = static_cast<std::uint64_t>(rank()) * tensor.count * dtype_size(dtype);
  if (tensor.count > 0 && static_cast<std::uint8_t*>(tensor.output) + own != tensor.input) {
    const ArgName what = {"input (it may be the caller's part of output)"};
    check_overlap(tensor.input, tensor.count, tensor.output, ranks * tensor.count, dtype, what);
    if (tensor.input == tensor.output) throw Error(Code::kInvalid, what.text() + ": overlaps another part");
  }
  set_tensors(work->call, &tensor, 1);
  return queue(lane_, std::move(work));
}

WorkRef Communicator::all_to_all(const TensorView& tensor, const std::uint64_t* send_counts,
                                 const std::uint64_t* recv_counts, DType dtype, const Codec& codec,
                                 double timeout_s) {
  WorkRef work = start(Verb::kAllToAll, dtype, codec, timeout_s);
  Call& call = work->call;
  const auto ranks = static_cast<std::size_t>(size());
  call.send_counts.assign(send_counts, send_counts + ranks);
  call.recv_counts.assign(recv_counts, recv_counts + ranks);
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (std::size_t p = 0; p < ranks; ++p) {
    const auto index = static_cast<std::int64_t>(p);
    check_memory(tensor.input, call.send_counts[p], ranks, dtype, {"input, send_counts", index});
    check_memory(tensor.output, call.recv_counts[p], ranks, dtype, {"output, recv_counts", index});
    sent += call.send_counts[p];
    received += call.recv_counts[p];
  }
  const auto own = static_cast<std::size_t>(rank());
  if (call.send_counts[own] != call.recv_counts[own]) {
    throw Error(Code::kInvalid, "recv_counts[" + std::to_string(own) +
                                    "]: " + std::to_string(recv_counts[own]) + ", but this rank sends itself " +
                                    std::to_string(send_counts[own]));
  }
  if (sent > 0 && tensor.input == tensor.output) throw Error(Code::kInvalid, "output: must not be the input");
  check_overlap(tensor.input, sent, tensor.output, received, dtype, {"output"});
  // The hash covers what all ranks share; counts are agreed pair by pair.
  const TensorView shared{tensor.input, tensor.output, 0, tensor.key};
  set_tensors(call, &shared, 1);
  return queue(lane_, std::move(work));
}

WorkRef Communicator::broadcast(const TensorView& tensor, DType dtype, int root, const Codec& codec,
                                double timeout_s) {
  WorkRef work = start(Verb::kBroadcast, dtype, codec, timeout_s);
  check_rank(root, size(), {"root"});
  check_memory(tensor.output, tensor.count, 1, dtype, {"data"});
  work->call.root = root;
  set_tensors(work->call, &tensor, 1);
  return queue(lane_, std::move(work));
}

WorkRef Communicator::send(const TensorView& tensor, DType dtype, int peer, const Codec& codec,
                           double timeout_s) {
  WorkRef work = start(Verb::kPointToPoint, dtype, codec, timeout_s);
  check_memory(tensor.input, tensor.count, 1, dtype, {"data"});
  work->call.root = rank();
  work->call.peer = peer;
  work->call.sending = true;
  set_tensors(work->call, &tensor, 1);
  return queue(*peer_lanes(peer, true).lane, std::move(work));
}

WorkRef Communicator::recv(const TensorView& tensor, DType dtype, int peer, const Codec& codec,
                           double timeout_s) {
  WorkRef work = start(Verb::kPointToPoint, dtype, codec, timeout_s);
  check_memory(tensor.output, tensor.count, 1, dtype, {"data"});
  work->call.root = peer;
  work->call.peer = peer;
  set_tensors(work->call, &tensor, 1);
  return queue(*peer_lanes(peer, false).lane, std::move(work));
}

WorkRef Communicator::barrier(double timeout_s) {
  WorkRef work = start(Verb::kBarrier, DType::kF32, nullptr, timeout_s);
  return queue(lane_, std::move(work));
}

Communicator::PeerLanes& Communicator::peer_lanes(int peer, bool sending) {
  check_rank(peer, size(), {"peer"});
  if (peer == rank())
    throw Error(Code::kInvalid, "peer: rank " + std::to_string(peer) + " is this rank itself");
  const std::lock_guard lock(mutex_);
  PeerLanes& lanes = (sending ? senders_ : receivers_)[static_cast<std::size_t>(peer)];
  if (lanes.lane == nullptr) {
    lanes.engine = std::make_unique<collective::PointToPoint>(*transport_, peer, sending, workspace_);
    lanes.lane = std::make_unique<Lane>((sending ? "gcomm-to-" : "gcomm-from-") + std::to_string(peer % 1000),
                                        [this, engine = lanes.engine.get()](Work& work) {
                                          run(work, [engine](Call& call) { engine->run(call); });
                                        });
  }
  return lanes;
}

template <typename Run>
void Communicator::run(Work& work, Run&& engine_run) {
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  if (failure) return finish(work, failure->code(), failure->what(), failure->peer());
  const std::string me = "rank " + std::to_string(rank());
  try {
    if (Clock::now() > work.call.deadline) {
      throw Error(Code::kTimeout,
                  me + " could not start a call before its deadline: " +
                      (work.waited_in_queue ? "earlier ones took too long"
                                            : "the time was too short, or the process did not run"),
                  rank());
    }
    if (work.job != nullptr) {
      work.job(work.job_context);
    } else {
      engine_run(work.call);
    }
    return finish(work, Code::kOk, {}, -1);
  } catch (const SharedError& error) {
    return finish(work, error.code(), error.what(), error.peer());
  } catch (const Error& error) {
    failure = error;
  } catch (const std::bad_alloc&) {
    failure = Error(Code::kNoMemory, me + " ran out of memory", rank());
  } catch (const std::exception& error) {
    failure = Error(Code::kInternal, me + ": " + error.what(), rank());
  }
  fail(*failure);
  std::string text = failure->what();
  if (work.job == nullptr) text += ", in " + collective::in_words(work.call);
  finish(work, failure->code(), text, failure->peer());
}

void Communicator::finish(Work& work, Code code, std::string_view text, int peer) {
  Call& call = work.call;
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    const TensorArg& tensor = call.tensors[i];
    if (tensor.state != nullptr) call.codec->release(tensor.state, code == Code::kOk || tensor.counted);
  }
  call.codec.reset();
  if (work.job == nullptr) {
    const std::lock_guard lock(mutex_);
    ++stats_.calls;
    stats_.raw_path_calls += call.stats.raw_path ? 1 : 0;
    add(stats_.sums, call.stats);
    if (call.verb == Verb::kAllReduce) stats_.plans = engine_.plans();
  }
  work.complete(code, text, peer);
}

void Communicator::fail(const Error& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = why;
  }
  transport_->abort(why);
}

void Communicator::abort(std::string_view why) {
  if (forked()) throw used_after_fork();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
  }
  std::string text = "rank " + std::to_string(rank()) + " aborted the communicator";
  if (!why.empty()) text += ": " + std::string(why);
  fail(Error(Code::kAborted, text, rank()));
}

CommStats Communicator::stats() const {
  if (forked()) throw used_after_fork();
  const std::lock_guard lock(mutex_);
  CommStats stats = stats_;
  stats.workspace_bytes = workspace_.load() + transport_->buffer_bytes();
  return stats;
}

void Communicator::close() {
  if (forked()) return;
  std::vector<Lane*> lanes = {&lane_};
  {
    const std::lock_guard lock(mutex_);
    for (auto* side : {&senders_, &receivers_}) {
      for (PeerLanes& peer : *side) {
        if (peer.lane != nullptr) lanes.push_back(peer.lane.get());
      }
    }
    for (const Lane* lane : lanes) {
      if (lane->on_own_thread())
        throw Error(Code::kInvalid, "close: called from one of the communicator's threads");
    }
    closing_ = true;
  }
  const std::lock_guard closing(close_mutex_);
  if (closed_) return;
  const Deadline deadline = deadline_after(timeout_s_);
  for (Lane* lane : lanes) {
    if (lane->wait_idle(deadline)) continue;
    fail(Error(Code::kTimeout, "rank " + std::to_string(rank()) + " closed while calls had not completed",
               rank()));
    break;
  }
  for (Lane* lane : lanes) lane->stop();
  transport_->close();
  closed_ = true;
}

}  // namespace gcomm::comm
