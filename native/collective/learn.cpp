// After a reduction: the keys' transforms learn from what was reduced.
#include "base/hash.h"
#include "collective/frame.h"

namespace gcomm::collective {
namespace {

int owner_of(const TensorArg& tensor, int ranks) {
  return static_cast<int>(Fnv64().text(tensor.key).value() % static_cast<std::uint64_t>(ranks));
}

// A call inside the call at hand, of bytes as they are.
void run_inside(Frame& frame, Verb verb, int root, std::uint8_t* input, std::uint8_t* output,
                std::size_t bytes) {
  Call& main = frame.call();
  Call& call = frame.inner;
  call.verb = verb;
  call.dtype = DType::kU8;
  call.root = root;
  call.deadline = main.deadline;
  call.stats = CallStats();
  call.tensors.resize(1);
  call.tensor_count = 1;
  call.tensors[0].input = input;
  call.tensors[0].output = output;
  call.tensors[0].count = bytes;
  frame.exchange.set_call(call);
  verb == Verb::kBroadcast ? broadcast(frame) : all_gather(frame);
  frame.exchange.end();
  frame.exchange.set_call(main);
  main.stats.wire_bytes += call.stats.wire_bytes;
  main.stats.comm_s += call.stats.comm_s;
}

// The owner's findings to everybody.
void share(Frame& frame, KeyTransform& transform, int owner) {
  frame.shared.resize(transform.shared_bytes());
  const bool sends = frame.rank() == owner;
  if (sends) transform.share(frame.shared.data());
  run_inside(frame, Verb::kBroadcast, owner, frame.shared.data(), frame.shared.data(), frame.shared.size());
  if (!sends) transform.accept(frame.shared.data());
}

// Everybody's part of the moments to everybody.
bool gather(Frame& frame, KeyTransform& transform, const TensorArg& tensor) {
  const auto ranks = static_cast<std::size_t>(frame.size());
  const std::size_t bytes = transform.part_numbers() * sizeof(double);
  frame.shared.resize((ranks + 1) * bytes);
  std::uint8_t* own = frame.shared.data() + ranks * bytes;
  transform.learn_part(tensor.output, frame.call().dtype,
                       static_cast<std::uint64_t>(frame.rank()) * tensor.count, tensor.count,
                       reinterpret_cast<double*>(own));
  run_inside(frame, Verb::kAllGather, 0, own, frame.shared.data(), bytes);
  return transform.learn_parts(reinterpret_cast<const double*>(frame.shared.data()), frame.size());
}

}  // namespace

void learn(Frame& frame) {
  Call& call = frame.call();
  if (call.codec == nullptr || !call.codec->transforms()) return;
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    TensorArg& tensor = call.tensors[i];
    KeyTransform* transform = tensor.transform();
    if (transform == nullptr || tensor_goes_raw(call, tensor.count, frame.size())) continue;
    const int owner = owner_of(tensor, frame.size());
    bool due = false;
    {
      const Timer timer(frame.stats().decode_s);
      due = transform->learn(tensor.output, call.dtype, owner == frame.rank());
    }
    if (!due) continue;
    if (transform->shared_bytes() > 0) share(frame, *transform, owner);
    const Timer timer(frame.stats().decode_s);
    transform->settle(call.codec->error_feedback() ? tensor.state->residual.data() : nullptr,
                      {frame.rank(), frame.size(), frame.divisor(), tensor.count, tensor.count});
  }
}

void learn_scattered(Frame& frame) {
  Call& call = frame.call();
  if (call.codec == nullptr || !call.codec->transforms() || frame.stats().raw_path) return;
  const TensorArg& tensor = call.tensors[0];
  KeyTransform* transform = tensor.transform();
  if (transform == nullptr || !transform->part_is_due() || !gather(frame, *transform, tensor)) return;
  transform->settle(
      call.codec->error_feedback() ? tensor.state->residual.data() : nullptr,
      {frame.rank(), frame.size(), frame.divisor(), tensor.count, round_up_to_tile(tensor.count)});
}

}  // namespace gcomm::collective
