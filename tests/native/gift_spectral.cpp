// A key of geometry=spectral by itself: what leaves on its sides and in the rest is the matrix, whatever the
// sides lose.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "gift/gift.h"
#include "gift_checks.h"

using namespace gift_test;
using namespace gcomm;
using collective::KeyTransform;

namespace {

constexpr std::size_t kRows = 60, kCols = 90, kCount = kRows * kCols;

std::unique_ptr<KeyTransform> learned(const std::string& options, const std::vector<float>& reference) {
  auto key =
      gift::make_key_transform(codec::parse_spec("gift+int4:" + options), codec::best_isa(), kRows, kCols);
  CHECK(key->path() == KeyTransform::Path::kDirect && key->digest() == 0);
  CHECK(key->learn(reference.data(), DType::kF32, true));
  key->settle(nullptr, {0, 1, 1.0f, kCount, kCount});
  CHECK(key->digest() != 0);
  return key;
}

double norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

// Sides as they are read, and the rest as it is: together they are the input, up to fp32's rounding of chains
// of as many terms as there are rows, columns and directions. The rest has lost most of a matrix that is its
// own reference.
void split_is_complete(const std::string& side) {
  const std::vector<float> reference = with_spectrum(kRows, kCols, geometric(kRows, 0.6), 3);
  const auto key = learned("mode=split:rank=8:side=" + side, reference);
  CHECK(key->path() == KeyTransform::Path::kSplit && key->sides() == 2);
  for (const bool itself : {true, false}) {
    std::vector<float> g = itself ? reference : normals(kCount, 9, 1.0f);
    std::vector<float> residual = normals(kCount, 10, 0.001f);
    key->prepare(g.data(), DType::kF32, residual.data(), false);
    for (std::size_t i = 0; i < kCount; ++i) g[i] += residual[i];  // what the codec will do
    for (std::size_t k = 0; k < 2; ++k) {
      const KeyTransform::Side s = key->side(k);
      CHECK(s.count == 8 * (k == 0 ? kCols : kRows), "side %zu has %llu", k,
            static_cast<unsigned long long>(s.count));
      s.block->decode({s.wire, s.block->max_encoded_bytes(s.count)}, s.output, DType::kF32, s.count);
      CHECK(std::equal(s.output, s.output + s.count, s.input), "%s: what a side keeps is what others read",
            side.c_str());
    }
    std::vector<float> rest = g;
    key->map().forward(0, kCount, rest.data());
    // 0.6^8 of it is outside; the sides' own loss is in there, too: up to a 14th of the largest in int4.
    CHECK(!itself || norm(rest) < 0.2 * norm(g), "%s: %g of %g left", side.c_str(), norm(rest), norm(g));
    key->sides_arrived();
    key->map().inverse(0, kCount, rest.data());
    const double bound = static_cast<double>(kRows + kCols + 32) * 0x1p-24 * norm(g);
    for (std::size_t i = 0; i < kCount; ++i) {
      CHECK(std::fabs(static_cast<double>(rest[i] - g[i])) <= bound, "%s: [%zu] %g, not %g", side.c_str(), i,
            static_cast<double>(rest[i]), static_cast<double>(g[i]));
    }
  }
}

// scale: finish() puts together what forward() took apart, whatever the shards.
void scale_is_undone() {
  const std::vector<float> reference = with_spectrum(kRows, kCols, geometric(kRows, 0.6), 3);
  const auto key = learned("mode=scale:rank=8", reference);
  CHECK(key->path() == KeyTransform::Path::kWhole);
  const std::vector<float> g = normals(kCount, 9, 1.0f);
  key->prepare(g.data(), DType::kF32, nullptr, false);
  std::vector<float> coded = g;
  key->map().forward(0, kCount, coded.data());
  // Two shards that share a row; the second arrives in pieces before the first.
  const std::uint64_t half = 31 * kCols + 17;
  for (const std::uint64_t end : {half + 40, half + 30 * kCols, std::uint64_t{kCount}}) {
    key->arrived(coded.data(), {1, half, kCount}, end);
  }
  key->arrived(coded.data(), {0, 0, half}, half);
  std::vector<float> out(kCount);
  key->finish(coded.data(), out.data(), DType::kF32);
  for (std::size_t i = 0; i < kCount; ++i) {
    CHECK(std::fabs(static_cast<double>(out[i] - g[i])) <= 1e-3, "[%zu] %g, not %g", i,
          static_cast<double>(out[i]), static_cast<double>(g[i]));
  }
}

// The second call's basis replaces the first one's, which comes from a sum that went direct; then every
// tenth call's.
void second_call_counts() {
  const std::vector<float> reference = with_spectrum(kRows, kCols, geometric(kRows, 0.6), 3);
  const auto key = learned("mode=rows:rank=8", reference);
  for (int call = 2; call <= 21; ++call) {
    const bool due = key->learn(reference.data(), DType::kF32, true);
    CHECK(due == (call == 2 || call == 11 || call == 21), "call %d", call);
  }
}

}  // namespace

int main() {
  second_call_counts();
  for (const char* side : {"bf16", "int8", "int4"}) split_is_complete(side);
  scale_is_undone();
  return check::report("gift_spectral");
}
