// mode=rows where inputs or bytes are not what they should be: NaN, Inf, values near the end of fp32, bytes
// that nobody encoded.
#include <algorithm>
#include <limits>
#include <random>

#include "gift_rows.h"

using namespace gift_test;
using namespace gcomm;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

// A NaN or an Inf in one place: formats with a NaN lose that place, others its block; every other element is as
// good as ever, and rows of other groups keep their bits.
void nonfinite_stays(const std::string& format, std::size_t block) {
  const RowBasis basis(40, 5);
  const auto codec = basis.codec("gift+" + format + ":mode=rows", codec::best_isa());
  const std::vector<float> clean = basis.matrix(300, 3);
  const std::vector<float> expected = decode(*codec, encode(*codec, clean).wire, clean.size());
  for (const float bad : {kNaN, kInf, -kInf}) {
    for (const std::size_t place : {std::size_t{0}, std::size_t{4321}, clean.size() - 1}) {
      std::vector<float> x = clean;
      x[place] = bad;
      const Encoding encoding = encode(*codec, x);
      CHECK(encoding.result.nonfinite, "%s", format.c_str());
      const std::vector<float> y = decode(*codec, encoding.wire, x.size());
      const std::size_t group = place / codec->granule() * codec->granule();
      const std::size_t marked = group + (place - group) / block * block;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (i >= marked && i < marked + block) {
          CHECK(!std::isfinite(y[i]), "%s: %g at %zu came out as %g at %zu", format.c_str(),
                static_cast<double>(bad), place, static_cast<double>(y[i]), i);
        } else if (i / codec->granule() != place / codec->granule()) {
          CHECK(y[i] == expected[i], "%s: element %zu of another group", format.c_str(), i);
        } else {
          // Noise of size 1 and coordinates of up to 5 in int4 or better: never 4 off.
          CHECK(std::fabs(y[i] - clean[i]) < 4.0f, "%s: element %zu is %g, not %g", format.c_str(), i,
                static_cast<double>(y[i]), static_cast<double>(clean[i]));
        }
      }
    }
  }
  const auto zeroing = basis.codec("gift+" + format + ":mode=rows:nonfinite=zero", codec::best_isa());
  std::vector<float> x = clean;
  x[4321] = kNaN;
  const Encoding encoding = encode(*zeroing, x);
  x[4321] = 0.0f;
  CHECK(encoding.result.nonfinite && encoding.wire == encode(*codec, x).wire, "%s: zero", format.c_str());
}

// The residual never takes a NaN or an Inf.
void residual_stays_finite() {
  const RowBasis basis(40, 5);
  const auto codec = basis.codec("gift+int8:mode=rows:ef=1", codec::best_isa());
  std::vector<float> x = basis.matrix(128, 3);
  x[100] = kNaN;
  x[2000] = -kInf;
  std::vector<float> residual(x.size(), 0.25f);
  encode(*codec, x, residual.data());
  CHECK(std::all_of(residual.begin(), residual.end(), [](float r) { return std::isfinite(r); }));
}

// Finite values come out finite, however large, and whatever the basis was learned from.
void finite_stays_finite(const std::string& format) {
  for (const double size_learned : {1e-30, 1.0, 1e30}) {
    const RowBasis basis(96, 6, size_learned);
    const auto codec = basis.codec("gift+" + format + ":mode=rows", codec::best_isa());
    for (const float size : {1e-38f, 1.0f, 1e20f, kMax}) {
      std::vector<float> x = normals(100 * 96, 12, 1.0f);
      for (float& value : x) value = std::clamp(value, -1.0f, 1.0f) * size;
      for (std::size_t j = 0; j < 96; ++j)
        x[j] = size * (basis.v[j * 8] < 0 ? -1.0f : 1.0f);  // one row along v_0
      const Encoding encoding = encode(*codec, x);
      CHECK(!encoding.result.nonfinite);
      const std::vector<float> y = decode(*codec, encoding.wire, x.size());
      std::size_t lost = 0;
      for (std::size_t i = 0; i < x.size(); ++i) lost += std::isfinite(y[i]) ? 0 : 1;
      CHECK(lost == 0, "%s: %zu of %zu values of size %g are lost, basis of size %g", format.c_str(), lost,
            x.size(), static_cast<double>(size), size_learned);
      // The rest has what S could not take.
      for (std::size_t i = 0; i < x.size(); ++i) {
        CHECK(std::fabs(y[i] / size - x[i] / size) <= 0.5f * std::sqrt(96.0f),
              "%s: %g became %g, basis of size %g", format.c_str(), static_cast<double>(x[i]),
              static_cast<double>(y[i]), size_learned);
      }
    }
  }
}

void sum_overflows() {
  const RowBasis basis(64, 4);
  const auto codec = basis.codec("gift+bf16:mode=rows", codec::best_isa());
  std::vector<float> x(64 * 64, 1.0f);
  x[77] = kMax;
  const Bytes wire = encode(*codec, x).wire;
  const Encoded arrivals[] = {{}, {wire.data(), wire.size()}};
  Bytes sum(wire.size());
  std::vector<float> out(x.size());
  ReduceJob job;
  job.own = x.data();
  job.arrivals = arrivals;
  job.ranks = 2;
  job.own_rank = 0;
  job.count = x.size();
  job.dst = sum.data();
  job.capacity = sum.size();
  job.out = out.data();
  CHECK(!codec->reduce_encode(job).nonfinite, "no input was");
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(i == 77 ? out[i] == kInf : std::isfinite(out[i]), "[%zu] %g", i, static_cast<double>(out[i]));
  }
}

void wrong_bytes() {
  for (const char* text :
       {"gift+int8:mode=rows", "gift+nvfp4:mode=rows:side=bf16", "gift+hadamard+int4:mode=rows"}) {
    const RowBasis basis(40, 18);
    const auto codec = basis.codec(text, codec::best_isa());
    constexpr std::size_t kCount = 150 * 40;
    const Bytes wire = encode(*codec, basis.matrix(150, 3)).wire;
    std::vector<float> out(kCount);
    std::vector<float> own(kCount);
    Bytes sum(wire.size());
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, wire.size() / 2, wire.size() - 1, wire.size() + 1}) {
      Bytes cut(wire);
      cut.resize(bytes);
      const Encoded encoded{cut.data(), cut.size()};
      CHECK_THROWS(codec->decode(encoded, out.data(), DType::kF32, kCount), Code::kCodec);
      CHECK_THROWS(codec->decode_accumulate(encoded, out.data(), kCount), Code::kCodec);
      const Encoded arrivals[] = {{}, encoded};
      ReduceJob job;
      job.own = own.data();
      job.arrivals = arrivals;
      job.ranks = 2;
      job.count = kCount;
      job.dst = sum.data();
      job.capacity = sum.size();
      CHECK_THROWS(codec->reduce_encode(job), Code::kCodec);
    }
    EncodeJob job;
    job.src = own.data();
    job.count = kCount;
    job.dst = sum.data();
    job.capacity = wire.size() - 1;
    CHECK_THROWS(codec->encode(job), Code::kInvalid);
    // Any bytes of the right length decode within their range: decode() has margins of its own, and memcheck
    // and the sanitizers see the rest.
    std::mt19937 random(7);
    for (int round = 0; round < 20; ++round) {
      Bytes junk(wire.size());
      for (std::uint8_t& byte : junk) byte = static_cast<std::uint8_t>(round == 0 ? 0xFF : random());
      const std::vector<float> first = decode(*codec, junk, kCount);
      std::vector<float> again(kCount, 0.0f);
      codec->decode_accumulate({junk.data(), junk.size()}, again.data(), kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        CHECK(first[i] == again[i] || (std::isnan(first[i]) && std::isnan(again[i])), "%s [%zu]", text, i);
      }
    }
  }
}

}  // namespace

int main() {
  nonfinite_stays("fp8_e4m3", 1);
  nonfinite_stays("bf16", 1);
  nonfinite_stays("int8", 128);
  nonfinite_stays("int4", 64);
  nonfinite_stays("nvfp4", 16);
  residual_stays_finite();
  for (const char* format : {"fp32", "bf16", "int8", "fp8_e4m3", "nvfp4", "int4"}) finite_stays_finite(format);
  sum_overflows();
  wrong_bytes();
  return check::report("gift_row_faults");
}
