#include "collective/engine.h"

namespace gcomm::collective {
namespace {

constexpr std::size_t kCachedPlans = 256;

// Everybody starts with the next rank, so that not all send to the same one at once.
std::vector<int> others(int rank, int size) {
  std::vector<int> peers;
  for (int i = 1; i < size; ++i) peers.push_back((rank + i) % size);
  return peers;
}

}  // namespace

Engine::Engine(Transport& transport, codec::Isa isa, ByteCounter& workspace)
    : exchange_(transport, Lane::kCollective, Lane::kCollective, others(transport.rank(), transport.size()),
                workspace),
      plans_(kCachedPlans),
      frame_{exchange_, plans_, isa, {}, {}, {}, {}, {}, {}, {}, {}} {}

void Engine::run(Call& call) {
  exchange_.set_call(call);
  try {
    dispatch(frame_);
  } catch (const SharedError&) {
    rewind_keys(call);
    exchange_.end();
    throw;
  }
  exchange_.end();
  if (call.verb == Verb::kAllReduce) learn(frame_);
  if (call.verb == Verb::kReduceScatter) learn_scattered(frame_);
}

void Engine::dispatch(Frame& frame) {
  switch (frame.call().verb) {
    case Verb::kAllReduce:
      return all_reduce(frame);
    case Verb::kReduceScatter:
      return reduce_scatter(frame);
    case Verb::kAllGather:
      return all_gather(frame);
    case Verb::kAllToAll:
      return all_to_all(frame);
    case Verb::kBroadcast:
      return broadcast(frame);
    case Verb::kBarrier:
      return barrier(frame);
    case Verb::kPointToPoint:
      break;
  }
  throw Error(Code::kInternal, "this verb has a lane of its own");
}

}  // namespace gcomm::collective
