// Wrong arguments are refused in the call itself; the link probe.
#include <cmath>
#include <thread>

#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

template <typename Call>
void invalid(Call&& call, const char* expected) {
  try {
    call();
    CHECK(false, "%s: not refused", expected);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kInvalid && std::string(error.what()).find(expected) != std::string::npos,
          "%s: %s", expected, error.what());
  }
}

void wrong_arguments() {
  World world({.size = 2});
  Communicator& comm = world[0];
  std::vector<float> memory(1000);
  float* data = memory.data();
  const auto reduce = [&](TensorView tensor, DType dtype = DType::kF32, const char* spec = "",
                          double timeout = 0) {
    comm.all_reduce(&tensor, 1, dtype, collective::Op::kSum, world.codec(0, spec), timeout);
  };
  invalid([&] { reduce({nullptr, data, 5, {}}); }, "tensors[0].input: NULL");
  invalid([&] { reduce({data, nullptr, 5, {}}); }, "tensors[0].output: NULL");
  invalid([&] { reduce({data, data + 1, 5, {}}); }, "overlap");
  invalid([&] { reduce({data + 4, data, 5, {}}); }, "overlap");
  invalid([&] { reduce({reinterpret_cast<char*>(data) + 1, reinterpret_cast<char*>(data) + 1, 5, {}}); },
          "aligned");
  invalid([&] { reduce({data, data, ~std::uint64_t{0} / 2, {}}); }, "more than memory");
  invalid([&] { reduce({data, data, 5, {}}, DType::kI32); }, "int32 cannot be summed");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF64, "int8"); }, "float64 cannot be encoded by codec int8");
  invalid([&] { reduce({data, data, 5, {}}, static_cast<DType>(99)); }, "99");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF32, "int8:ef=1"); }, "needs a key");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF32, "", -1); }, "timeout_s");
  invalid([&] { reduce({data, data, 5, {}}, DType::kF32, "", NAN); }, "timeout_s");
  const TensorView twice[] = {{data, data, 5, "k"}, {data + 10, data + 10, 5, "k"}};
  invalid([&] { comm.all_reduce(twice, 2, DType::kF32, collective::Op::kSum, world.codec(0, "int8:ef=1"), 0); },
          "'k' names two tensors");
  invalid([&] { comm.broadcast({data, data, 5, {}}, DType::kF32, 2, nullptr, 0); }, "root: 2");
  invalid([&] { comm.send({data, nullptr, 5, {}}, DType::kF32, 0, nullptr, 0); }, "this rank itself");
  invalid([&] { comm.recv({nullptr, data, 5, {}}, DType::kF32, -1, nullptr, 0); }, "peer: -1");
  invalid([&] { comm.reduce_scatter({data, data + 6, 5, {}}, DType::kF32, collective::Op::kSum, nullptr, 0); },
          "overlap");
  invalid([&] { world[1].reduce_scatter({data, data, 5, {}}, DType::kF32, collective::Op::kSum, nullptr, 0); },
          "overlap");
  invalid([&] { comm.all_gather({data + 3, data, 5, {}}, DType::kF32, nullptr, 0); }, "overlap");
  const std::uint64_t sends[] = {3, 4}, receives[] = {2, 4};
  invalid([&] { comm.all_to_all({data, data + 500, 0, {}}, sends, receives, DType::kF32, nullptr, 0); },
          "recv_counts[0]");
  invalid([&] { comm.all_to_all({data, data, 0, {}}, sends, sends, DType::kF32, nullptr, 0); },
          "must not be the input");
  CHECK_THROWS(comm.codec("int9"), Code::kCodec);
  invalid([&] { comm.link_probe(1, true, comm::LinkPattern::kPingPong, 0, 1, nullptr); }, "bytes: 0");
  // A key's residual is for one size.
  std::vector<std::vector<float>> both(2, std::vector<float>(20));
  world.all([&](int r) {
    float* memory_of = both[static_cast<std::size_t>(r)].data();
    const TensorView tensor{memory_of, memory_of, 20, "size"};
    return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, world.codec(r, "int8:ef=1"), 0);
  });
  invalid([&] { reduce({data, data, 21, "size"}, DType::kF32, "int8:ef=1"); }, "residual of 20 elements");
  // Nothing of this was sent.
  world.all([&](int r) { return world[r].barrier(0); });
}

void link_probe() {
  World world({.size = 2, .transport = "tcp"});
  for (const auto pattern :
       {comm::LinkPattern::kPingPong, comm::LinkPattern::kOneWay, comm::LinkPattern::kBidirectional}) {
    for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{4096}, std::uint64_t{9} << 20}) {
      double seconds[5] = {};
      std::thread other([&] { world[1].link_probe(0, false, pattern, bytes, 5, nullptr); });
      world[0].link_probe(1, true, pattern, bytes, 5, seconds);
      other.join();
      for (const double s : seconds) CHECK(s > 0 && s < 10);
    }
  }
}

}  // namespace

int main() {
  wrong_arguments();
  link_probe();
  return check::report("engine_arguments");
}
