// One-thread speed of the codecs in GB/s of fp32, against memcpy taken in turn in the same run.
//
//   codec_speed [--mib 256] [--repeats 5] [--isa NAME] [--part N] [CODEC...]
//
// --part cuts the range into calls of N MiB of fp32, as the engine's chunks do; 0 is one call. Each cell is the
// best of the repeats; the ratio under it is memcpy's best time over its own.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "thread_time.h"

namespace {

using benchmark::seconds;
using gcomm::codec::BlockCodec;
using gcomm::codec::Encoded;

// Normal-like numbers of slowly changing size, as gradients have.
std::vector<float> values(std::size_t count) {
  std::vector<float> x(count);
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0.0f;
    state = state * 6364136223846793005u + 1442695040888963407u;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(state >> (16 * part) & 0xFFFF) - 32767.5f;
    }
    x[i] = sum * 1e-8f * static_cast<float>(1 + (i >> 12) % 13);
  }
  return x;
}

struct Options {
  std::size_t mib = 256;
  std::size_t part = 0;
  int repeats = 5;
  gcomm::codec::Isa isa = gcomm::codec::best_isa();
  std::vector<std::string> codecs;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&] { return std::strtoul(i + 1 < argc ? argv[++i] : "0", nullptr, 10); };
    if (word == "--mib") {
      options.mib = number();
    } else if (word == "--part") {
      options.part = number();
    } else if (word == "--repeats") {
      options.repeats = static_cast<int>(number());
    } else if (word == "--isa") {
      options.isa = gcomm::codec::parse_isa(i + 1 < argc ? argv[++i] : "");
    } else {
      options.codecs.push_back(word);
    }
  }
  if (options.codecs.empty()) {
    for (const auto& format : gcomm::codec::formats()) {
      options.codecs.push_back(format.name);
    }
    options.codecs.push_back("hadamard+int8");
    options.codecs.push_back("hadamard+int4");
  }
  return options;
}

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        count_(options.mib << 18),
        x_(values(count_)),
        y_(count_, 1.0f),
        wire_(count_ * 4 + 4096),
        sum_wire_(count_ * 4 + 4096) {
    part_ = options.part == 0 ? count_ : options.part << 18;
  }

  void run(const std::string& text) {
    const auto codec = BlockCodec::make(gcomm::codec::parse_spec(text), options_.isa);
    const double copy = 1e30;
    double best[5] = {copy, copy, copy, copy, copy};
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      const std::function<void()> works[5] = {
          [&] { std::memcpy(y_.data(), x_.data(), count_ * 4); },
          [&] { each([&](std::size_t at, std::size_t n) { encode(*codec, at, n); }); },
          [&] { each([&](std::size_t at, std::size_t n) { decode(*codec, at, n); }); },
          [&] { each([&](std::size_t at, std::size_t n) { accumulate(*codec, at, n); }); },
          [&] { each([&](std::size_t at, std::size_t n) { reduce(*codec, at, n); }); },
      };
      for (int i = 0; i < 5; ++i) {
        best[i] = std::min(best[i], seconds(works[i]));
      }
    }
    std::printf("%-16s %8.2f", text.c_str(), gigabytes(best[0]));
    for (int i = 1; i < 5; ++i) {
      std::printf("  %6.2f %5.2f", gigabytes(best[i]), best[0] / best[i]);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  double gigabytes(double time) const { return static_cast<double>(count_) * 4e-9 / time; }

  template <class Work>
  void each(Work work) {
    for (std::size_t at = 0; at < count_; at += part_) {
      work(at, std::min(part_, count_ - at));
    }
  }
  Encoded wire(const BlockCodec& codec, std::size_t at, std::size_t n) const {
    return {wire_.data() + codec.max_encoded_bytes(at), codec.max_encoded_bytes(n)};
  }
  void encode(const BlockCodec& codec, std::size_t at, std::size_t n) {
    gcomm::codec::EncodeJob job;
    job.src = x_.data() + at;
    job.count = n;
    job.dst = wire_.data() + codec.max_encoded_bytes(at);
    job.capacity = codec.max_encoded_bytes(n);
    codec.encode(job);
  }
  void decode(const BlockCodec& codec, std::size_t at, std::size_t n) {
    codec.decode(wire(codec, at, n), y_.data() + at, gcomm::DType::kF32, n);
  }
  void accumulate(const BlockCodec& codec, std::size_t at, std::size_t n) {
    codec.decode_accumulate(wire(codec, at, n), y_.data() + at, n);
  }
  // Two ranks, own first, in place.
  void reduce(const BlockCodec& codec, std::size_t at, std::size_t n) {
    const Encoded arrivals[2] = {{}, wire(codec, at, n)};
    gcomm::codec::ReduceJob job;
    job.own = y_.data() + at;
    job.arrivals = arrivals;
    job.ranks = 2;
    job.own_rank = 0;
    job.count = n;
    job.dst = sum_wire_.data() + codec.max_encoded_bytes(at);
    job.capacity = codec.max_encoded_bytes(n);
    job.out = y_.data() + at;
    codec.reduce_encode(job);
  }

  Options options_;
  std::size_t count_;
  std::size_t part_;
  std::vector<float> x_;
  std::vector<float> y_;
  std::vector<std::uint8_t> wire_;
  std::vector<std::uint8_t> sum_wire_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    Bench bench(options);
    std::printf("%zu MiB of fp32, %s, best of %d; GB/s and ratio to memcpy\n", options.mib,
                gcomm::codec::isa_name(options.isa), options.repeats);
    std::printf("%-16s %8s  %12s  %12s  %12s  %12s\n", "codec", "memcpy", "encode", "decode", "accumulate",
                "reduce");
    for (const std::string& text : options.codecs) {
      bench.run(text);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "codec_speed: %s\n", error.what());
    return 1;
  }
  return 0;
}
