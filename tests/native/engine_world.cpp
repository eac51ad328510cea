#include "engine_world.h"

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "base/float.h"
#include "transport/local/local.h"
#include "transport/tcp/tcp.h"

namespace gcomm::test {

std::vector<std::unique_ptr<Transport>> make_transports(const WorldOptions& options) {
  if (options.transport == "local") return make_local(options.size, options.slot_bytes);
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < options.size; ++r) {
    listeners.emplace_back("127.0.0.1");
    addresses.push_back(listeners.back().address());
  }
  const TcpToken token = random_token();
  std::vector<std::unique_ptr<Transport>> transports(static_cast<std::size_t>(options.size));
  std::vector<std::thread> makers;
  for (int r = 0; r < options.size; ++r) {
    makers.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      transports[i] = make_tcp(listeners[i], r, options.size, addresses, token, options.slot_bytes,
                               Clock::now() + std::chrono::seconds(30));
    });
  }
  for (std::thread& maker : makers) maker.join();
  return transports;
}

World::World(const WorldOptions& options) {
  for (auto& transport : make_transports(options)) {
    ranks_.push_back(std::make_unique<Communicator>(std::move(transport), options.timeout_s, options.isa));
  }
}

std::vector<WorkRef> World::all(const std::function<WorkRef(int)>& start, Code expected) {
  std::vector<WorkRef> works;
  for (int r = 0; r < size(); ++r) works.push_back(start(r));
  for (int r = 0; r < size(); ++r) {
    const WorkRef& work = works[static_cast<std::size_t>(r)];
    CHECK(work->wait_until(Clock::now() + std::chrono::seconds(100)), "rank %d hangs", r);
    CHECK(work->code() == expected, "rank %d: code %d: %s", r, static_cast<int>(work->code()),
          work->text().c_str());
  }
  return works;
}

comm::Codec World::codec(int rank, const std::string& spec) {
  return spec.empty() ? nullptr : (*this)[rank].codec(spec);
}

Bytes random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(n);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

Bytes random_tensor(DType dtype, std::uint64_t count, std::uint64_t seed, Fill fill) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    const auto dice = random() % 64;
    if (dice == 0) value = 0.0f;
    if (dice == 1) value *= 1000.0f;
    if (dice == 2) value *= 1e-6f;
    if (fill == Fill::kHuge) value *= dtype == DType::kF16 ? 30000.0f : 1e38f;
    if (fill == Fill::kWithNonFinite && dice >= 61) {
      value = dice == 61 ? NAN : dice == 62 ? INFINITY : -INFINITY;
    }
  }
  return from_floats(values, dtype);
}

std::vector<float> to_floats(const Bytes& tensor, DType dtype) {
  std::vector<float> values(tensor.size() / dtype_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], tensor.data() + 4 * i, 4);
    } else {
      std::uint16_t half;
      std::memcpy(&half, tensor.data() + 2 * i, 2);
      values[i] = dtype == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
    }
  }
  return values;
}

Bytes from_floats(const std::vector<float>& values, DType dtype) {
  Bytes tensor(values.size() * dtype_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      const std::uint32_t bits = std::isnan(values[i]) ? kCanonicalNaN : float_bits(values[i]);
      std::memcpy(tensor.data() + 4 * i, &bits, 4);
    } else {
      const std::uint16_t half = dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
      std::memcpy(tensor.data() + 2 * i, &half, 2);
    }
  }
  return tensor;
}

}  // namespace gcomm::test
