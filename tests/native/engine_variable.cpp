// A format of variable length, which no shipped codec is yet: nothing in the engine may take lengths for
// granted.
#include <algorithm>
#include <cstring>

#include "collective/payload.h"
#include "engine_world.h"

using namespace gcomm;
using namespace gcomm::test;
using codec::BlockCodec;

namespace {

// fp32, but a tile of zeros is one byte: 0; any other is 1 and its elements.
class ZeroTiles final : public BlockCodec {
 public:
  explicit ZeroTiles(const char* spec) : BlockCodec(codec::parse_spec(spec), codec::Isa::kScalar) {}

  bool fixed_length() const override { return false; }
  std::size_t max_encoded_bytes(std::size_t count) const override {
    return 4 * count + (count + codec::kTile - 1) / codec::kTile;
  }

  codec::EncodeResult encode(const codec::EncodeJob& job) const override {
    CHECK(job.dtype == DType::kF32 && job.capacity >= max_encoded_bytes(job.count));
    return {write(static_cast<const float*>(job.src), job.count, job.dst), false};
  }

  void decode(codec::Encoded in, void* dst, DType, std::size_t count) const override {
    std::vector<float> values(count, 0.0f);
    decode_accumulate(in, values.data(), count);
    if (count > 0) std::memcpy(dst, values.data(), 4 * count);
  }

  void decode_accumulate(codec::Encoded in, float* acc, std::size_t count) const override {
    const std::uint8_t* p = in.data;
    const std::uint8_t* end = in.data + in.bytes;
    for (std::size_t begin = 0; begin < count; begin += codec::kTile) {
      const std::size_t size = std::min(codec::kTile, count - begin);
      if (p == end) throw Error(Code::kCodec, "a tile is missing");
      if (*p++ == 0) continue;
      if (static_cast<std::size_t>(end - p) < 4 * size) throw Error(Code::kCodec, "a tile is cut off");
      for (std::size_t i = 0; i < size; ++i, p += 4) {
        float value;
        std::memcpy(&value, p, 4);
        acc[begin + i] += value;
      }
    }
    if (p != end) throw Error(Code::kCodec, "bytes are left over");
  }

  codec::EncodeResult reduce_encode(const codec::ReduceJob& job) const override {
    std::vector<float> sum(job.count, 0.0f);
    for (int p = 0; p < job.ranks; ++p) {
      if (p != job.own_rank) {
        decode_accumulate(job.arrivals[p], sum.data(), job.count);
      } else {
        for (std::size_t i = 0; i < job.count; ++i) sum[i] += static_cast<const float*>(job.own)[i];
      }
    }
    for (float& value : sum) value /= job.divisor;
    std::memcpy(job.out, sum.data(), 4 * job.count);
    return {job.dst == nullptr ? 0 : write(sum.data(), job.count, job.dst), false};
  }

 private:
  static std::size_t write(const float* src, std::size_t count, std::uint8_t* dst) {
    std::uint8_t* p = dst;
    for (std::size_t begin = 0; begin < count; begin += codec::kTile) {
      const std::size_t size = std::min(codec::kTile, count - begin);
      const bool zero = std::all_of(src + begin, src + begin + size, [](float v) { return v == 0; });
      *p++ = zero ? 0 : 1;
      if (zero) continue;
      std::memcpy(p, src + begin, 4 * size);
      p += 4 * size;
    }
    return static_cast<std::size_t>(p - dst);
  }
};

comm::Codec variable(const char* spec) {
  return std::make_shared<collective::StatefulCodec>(std::make_shared<ZeroTiles>(spec));
}

// Whole numbers, so that sums are exact; most tiles are zero, the same ones on all ranks.
std::vector<float> sparse(std::uint64_t count, int rank) {
  std::vector<float> values(count, 0.0f);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i / 4096 % 5 == 2 || i / 4096 % 7 == 0)
      values[i] = static_cast<float>(i % 100) + static_cast<float>(rank);
  }
  return values;
}

void all_verbs(const std::string& transport, int ranks, const char* spec) {
  World world({.size = ranks, .transport = transport, .slot_bytes = std::size_t{128} << 10});
  const comm::Codec codec = variable(spec);
  const auto n = static_cast<std::size_t>(ranks);
  for (const std::uint64_t count :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4097}, std::uint64_t{300007}}) {
    std::vector<std::vector<float>> inputs, outputs(n, std::vector<float>(count, -7.0f));
    std::vector<std::vector<float>> second(n, std::vector<float>(count / 2, -7.0f));
    std::vector<float> sum(count, 0.0f);
    for (int r = 0; r < ranks; ++r) {
      inputs.push_back(sparse(count, r));
      for (std::uint64_t i = 0; i < count; ++i) sum[i] += inputs.back()[i];
    }
    const auto works = world.all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      const TensorView tensors[] = {{inputs[i].data(), outputs[i].data(), count, {}},
                                    {inputs[i].data(), second[i].data(), count / 2, {}}};
      return world[r].all_reduce(tensors, 2, DType::kF32, collective::Op::kSum, codec, 0);
    });
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(outputs[i] == sum, "%llu elements", static_cast<unsigned long long>(count));
      CHECK(second[i] == std::vector<float>(sum.begin(), sum.begin() + static_cast<std::ptrdiff_t>(count / 2)));
      if (count == 300007 && ranks > 1) CHECK(works[i]->stats().wire_bytes * 2 < works[i]->stats().raw_bytes);
    }
    std::vector<std::vector<float>> gathered(n, std::vector<float>(n * count, -7.0f));
    std::vector<float> expected;
    for (const auto& input : inputs) expected.insert(expected.end(), input.begin(), input.end());
    world.all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      return world[r].all_gather({inputs[i].data(), gathered[i].data(), count, {}}, DType::kF32, codec, 0);
    });
    for (const auto& result : gathered) CHECK(result == expected);
    std::vector<std::vector<float>> shards(n, std::vector<float>(count / n, -7.0f));
    world.all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      return world[r].reduce_scatter({inputs[i].data(), shards[i].data(), count / n, {}}, DType::kF32,
                                     collective::Op::kSum, codec, 0);
    });
    for (std::size_t i = 0; i < n; ++i)
      CHECK(std::equal(shards[i].begin(), shards[i].end(),
                       sum.begin() + static_cast<std::ptrdiff_t>(i * (count / n))));
    const std::vector<std::uint64_t> counts(n, count / n);
    world.all([&](int r) {
      const auto i = static_cast<std::size_t>(r);
      return world[r].all_to_all({inputs[i].data(), outputs[i].data(), 0, {}}, counts.data(), counts.data(),
                                 DType::kF32, codec, 0);
    });
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t from = 0; from < n; ++from) {
        const auto size = static_cast<std::ptrdiff_t>(count / n);
        const auto to = static_cast<std::ptrdiff_t>(i);
        CHECK(std::equal(inputs[from].begin() + to * size, inputs[from].begin() + (to + 1) * size,
                         outputs[i].begin() + static_cast<std::ptrdiff_t>(from) * size));
      }
    }
    world.all([&](int r) {
      float* data = inputs[static_cast<std::size_t>(r)].data();
      return world[r].broadcast({data, data, count, {}}, DType::kF32, ranks - 1, codec, 0);
    });
    for (const auto& result : inputs) CHECK(result == inputs.back());
    if (ranks > 1) {
      std::vector<float> received(count, -7.0f);
      const WorkRef in = world[0].recv({nullptr, received.data(), count, {}}, DType::kF32, 1, codec, 0);
      const WorkRef out = world[1].send({inputs[1].data(), nullptr, count, {}}, DType::kF32, 0, codec, 0);
      CHECK(in->wait_until(Clock::now() + std::chrono::seconds(30)) && in->code() == Code::kOk, "%s",
            in->text().c_str());
      CHECK(out->wait_until(Clock::now() + std::chrono::seconds(30)) && out->code() == Code::kOk);
      CHECK(received == inputs[1]);
    }
  }
}

// Length tables that cannot be right are errors that name the peer, never reads out of bounds.
void broken_tables() {
  const ZeroTiles block("fp32");
  const collective::Coding coding(&block, DType::kF32);
  const std::vector<float> values(5000, 3.0f);
  const collective::TensorArg tensor;
  Bytes payload(64 << 10);
  collective::PayloadWriter out(coding, payload.data(), payload.size(), 2);
  out.add(tensor, values.data(), 5000, 0);
  out.add(tensor, values.data(), 10, 0);
  collective::Incoming message{3, out.header(1, 0), payload.data()};
  CHECK(message.header.has(collective::kFlagLengthTable) && message.header.count == 5010 &&
        message.header.payload_bytes == 8 + 2 + 4 * 5000 + 1 + 4 * 10);
  std::vector<float> result(5010, 0.0f);
  const auto read = [&] {
    collective::PayloadReader in(coding, message, 2);
    in.decode_next(result.data(), 5000);
    in.decode_next(result.data() + 5000, 10);
    in.done();
  };
  read();
  CHECK(result == std::vector<float>(5010, 3.0f));
  for (const std::uint32_t length : {0u, 1u, 20001u, 20003u, 0xFFFFFFFFu}) {
    std::uint32_t right;
    std::memcpy(&right, payload.data(), 4);
    std::memcpy(payload.data(), &length, 4);
    CHECK_THROWS(read(), Code::kCodec);
    std::memcpy(payload.data(), &right, 4);
  }
  for (std::uint32_t bytes = 0; bytes < message.header.payload_bytes; bytes += 7) {
    collective::Incoming cut = message;
    cut.header.payload_bytes = bytes;
    std::swap(cut, message);
    CHECK_THROWS(read(), Code::kCodec);
    std::swap(cut, message);
  }
  message.header.payload_bytes += 1;
  CHECK_THROWS(read(), Code::kCodec);
  message.header.flags = 0;
  CHECK_THROWS(read(), Code::kPeerLost);
}

}  // namespace

int main() {
  for (int ranks = 1; ranks <= 4; ++ranks) all_verbs("local", ranks, "fp32:min_bytes=0");
  all_verbs("tcp", 3, "fp32:min_bytes=0:crc=1");
  all_verbs("local", 2, "fp32");
  broken_tables();
  return check::report("engine_variable");
}
