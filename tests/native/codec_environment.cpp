// What a host program does to the floating-point environment changes no bit, and is as it was afterwards.
#include <cfenv>
#include <cmath>

#include "codec_harness.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace codec_test;

struct Results {
  std::vector<std::uint8_t> wire;
  std::vector<float> decoded;
  std::vector<float> accumulated;
  std::vector<float> reduced;
  std::vector<float> raw;

  bool operator==(const Results& other) const {
    return wire == other.wire && same(decoded, other.decoded) && same(accumulated, other.accumulated) &&
           same(reduced, other.reduced) && same(raw, other.raw);
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
  }
};

Results run(const BlockCodec& codec, const std::vector<float>& x) {
  const std::size_t count = x.size();
  Results out;
  out.wire.resize(codec.max_encoded_bytes(count));
  EncodeJob job;
  job.src = x.data();
  job.count = count;
  job.dst = out.wire.data();
  job.capacity = out.wire.size();
  codec.encode(job);
  const Encoded encoded{out.wire.data(), out.wire.size()};
  out.decoded.resize(count);
  codec.decode(encoded, out.decoded.data(), DType::kF32, count);
  out.accumulated = x;
  codec.decode_accumulate(encoded, out.accumulated.data(), count);
  out.reduced = x;
  std::vector<std::uint8_t> sum(out.wire.size());
  const Encoded arrivals[2] = {{}, encoded};
  ReduceJob reduction;
  reduction.own = x.data();
  reduction.arrivals = arrivals;
  reduction.ranks = 2;
  reduction.count = count;
  reduction.divisor = 3.0f;
  reduction.dst = sum.data();
  reduction.capacity = sum.size();
  reduction.out = out.reduced.data();
  codec.reduce_encode(reduction);
  out.raw.resize(count);
  const void* inputs[2] = {x.data(), out.decoded.data()};
  raw_reduce(inputs, 2, DType::kF32, count, 3.0f, false, out.raw.data(), codec.isa());
  return out;
}

}  // namespace

int main() {
  std::vector<float> x = make_data(Data::kDenormal, 2 * kTile + 100, 1);
  const std::vector<float> normal = make_data(Data::kNormal, 2 * kTile + 100, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i / 128 % 2 == 0 ? x[i] : normal[i];
  }
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!isa_available(isa)) {
      continue;
    }
    for (const FormatInfo& format : formats()) {
      for (const std::string& text : {std::string(format.name), "hadamard+" + std::string(format.name),
                                      std::string(format.name) + ":rounding=stochastic"}) {
        const auto codec = BlockCodec::make(parse_spec(text), isa);
        const Results want = run(*codec, x);
        for (const int rounding : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
          std::fesetround(rounding);
          const Results got = run(*codec, x);
          CHECK(std::fegetround() == rounding);
          std::fesetround(FE_TONEAREST);
          CHECK(got == want, "%s on %s, rounding mode %d", text.c_str(), isa_name(isa), rounding);
        }
#if defined(__x86_64__)
        const unsigned before = _mm_getcsr();
        for (const unsigned host : {0x8000u, 0x0040u, 0x8040u}) {  // flush to zero, denormals are zero
          _mm_setcsr(0x1F80u | host);
          const Results got = run(*codec, x);
          CHECK((_mm_getcsr() & 0xFFC0u) == (0x1F80u | host));
          _mm_setcsr(before);
          CHECK(got == want, "%s on %s, MXCSR %x", text.c_str(), isa_name(isa), host);
        }
        _mm_setcsr(0x0000u);  // every exception traps
        const Results got = run(*codec, x);
        CHECK((_mm_getcsr() & 0xFFC0u) == 0);
        _mm_setcsr(before);
        CHECK(got == want, "%s on %s, with traps", text.c_str(), isa_name(isa));
#endif
      }
    }
  }
  return check::report("codec_environment");
}
