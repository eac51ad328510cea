// Arbitrary bytes into every decoder: of the right length they decode to something, alike on every instruction
// set, and nothing beside the output is touched; of any other length they are refused. Meant for a sanitiser
// build.
//
//   GCOMM_FUZZ_CASES=N codec_fuzz     default 6000; the long tier asks for 1000000
#include <cstdlib>

#include "base/error.h"
#include "codec_harness.h"

namespace {

using namespace codec_test;

class Fuzzer {
 public:
  explicit Fuzzer(std::uint32_t seed) : random_(seed) {
    for (const FormatInfo& format : formats()) {
      for (const std::string& text : {std::string(format.name), "hadamard+" + std::string(format.name)}) {
        codecs_.push_back({});
        for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
          if (isa_available(isa)) {
            codecs_.back().push_back(BlockCodec::make(parse_spec(text), isa));
          }
        }
      }
    }
  }

  void one_case() {
    const auto& drivers = codecs_[next() % codecs_.size()];
    const std::size_t count = next() % 8 == 0 ? 4000 + next() % 300 : next() % 400;
    const std::size_t length = drivers[0]->max_encoded_bytes(count);
    std::vector<std::uint8_t> bytes = make_bytes(*drivers[0], count, length);
    switch (next() % 8) {
      case 0:
        bytes.resize(next() % (length + 1));
        break;
      case 1:
        bytes.resize(length + 1 + next() % 40);
        break;
      default:
        break;
    }
    // A block of its own, so that a sanitiser sees the first byte too many.
    const std::vector<std::uint8_t> exact(bytes);
    const Encoded encoded{exact.data(), exact.size()};
    const DType dtype = static_cast<DType>(next() % 3);
    Elements first(dtype, count);
    for (const auto& codec : drivers) {
      Elements out(dtype, count);
      std::vector<float> sum(count, 1.0f);
      if (exact.size() != length) {
        CHECK_THROWS(codec->decode(encoded, out.data(), dtype, count), Code::kCodec);
        CHECK_THROWS(codec->decode_accumulate(encoded, sum.data(), count), Code::kCodec);
        continue;
      }
      codec->decode(encoded, out.data(), dtype, count);
      codec->decode_accumulate(encoded, sum.data(), count);
      CHECK(out.margins_intact());
      if (codec == drivers[0]) {
        first = out;
      }
      CHECK(out.same(first), "%s on %s, %zu elements", codec->spec().text().c_str(), isa_name(codec->isa()),
            count);
    }
  }

 private:
  std::uint32_t next() { return static_cast<std::uint32_t>(random_()); }

  // Random, or encoded from random values and then disturbed.
  std::vector<std::uint8_t> make_bytes(const BlockCodec& codec, std::size_t count, std::size_t length) {
    std::vector<std::uint8_t> bytes(length);
    if (next() % 3 == 0) {
      for (std::uint8_t& byte : bytes) {
        byte = static_cast<std::uint8_t>(next());
      }
      return bytes;
    }
    const std::vector<float> x = make_data(kAllData[next() % 8], count, next());
    EncodeJob job;
    job.src = x.data();
    job.count = count;
    job.dst = bytes.data();
    job.capacity = length;
    codec.encode(job);
    for (std::uint32_t flips = next() % 5; flips > 0 && length > 0; --flips) {
      std::uint8_t& byte = bytes[next() % length];
      byte = static_cast<std::uint8_t>(byte ^ 1u << (next() % 8));
    }
    return bytes;
  }

  std::mt19937 random_;
  std::vector<std::vector<std::shared_ptr<const BlockCodec>>> codecs_;
};

}  // namespace

int main() {
  const char* asked = std::getenv("GCOMM_FUZZ_CASES");  // the long tier asks for more
  const long cases = asked != nullptr ? std::strtol(asked, nullptr, 10) : 6000;
  Fuzzer fuzzer(20261130);
  for (long i = 0; i < cases; ++i) {
    fuzzer.one_case();
  }
  std::printf("%ld cases\n", cases);
  return check::report("codec_fuzz");
}
