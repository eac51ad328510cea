// Stochastic rounding: the generator's published test vectors, exact repetition, the right mean, and
// independence of how a range is cut.
#include <cmath>

#include "base/philox.h"
#include "codec_harness.h"

namespace {

using namespace codec_test;

void known_answers() {
  const struct {
    std::uint64_t seed;
    PhiloxBlock counter;
    PhiloxBlock want;
  } cases[] = {
      {0, {{0, 0, 0, 0}}, {{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}}},
      {~std::uint64_t{0},
       {{0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu}},
       {{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}}},
      {0x299F31D0A4093822u,
       {{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}},
       {{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}}},
  };
  for (const auto& entry : cases) {
    const PhiloxBlock got = philox4x32_10(entry.seed, entry.counter);
    for (int i = 0; i < 4; ++i) {
      CHECK(got.word[i] == entry.want.word[i]);
    }
  }
}

std::vector<std::uint8_t> encode(const BlockCodec& codec, const float* x, std::size_t count,
                                 const StreamPosition& position) {
  std::vector<std::uint8_t> out(codec.max_encoded_bytes(count));
  EncodeJob job;
  job.src = x;
  job.count = count;
  job.position = position;
  job.dst = out.data();
  job.capacity = out.size();
  codec.encode(job);
  return out;
}

void repeats(const std::string& format) {
  const std::vector<float> x = make_data(Data::kNormal, 3 * kTile, 4);
  const auto codec = BlockCodec::make(parse_spec(format + ":rounding=stochastic:seed=11"), best_isa());
  const StreamPosition here{8192, 5, 77};
  const auto first = encode(*codec, x.data(), x.size(), here);
  CHECK(first == encode(*codec, x.data(), x.size(), here));
  // Cut at a tile, the second part says where it begins.
  auto joined = encode(*codec, x.data(), kTile, here);
  const auto rest =
      encode(*codec, x.data() + kTile, x.size() - kTile, {here.element + kTile, here.call, here.stream});
  joined.insert(joined.end(), rest.begin(), rest.end());
  CHECK(first == joined, "%s", format.c_str());
  if (format == "fp32") {
    return;  // nothing to round
  }
  const auto other_seed = BlockCodec::make(parse_spec(format + ":rounding=stochastic:seed=12"), best_isa());
  CHECK(first != encode(*other_seed, x.data(), x.size(), here));
  CHECK(first != encode(*codec, x.data(), x.size(), {0, 5, 77}));
  CHECK(first != encode(*codec, x.data(), x.size(), {8192, 6, 77}));
  CHECK(first != encode(*codec, x.data(), x.size(), {8192, 5, 78}));
}

// A block of one value that lies between two codes, many times: the mean of what is decoded is that value.
void mean_is_right(const std::string& format, std::size_t block) {
  if (format == "fp32") {
    return;
  }
  const auto codec = BlockCodec::make(parse_spec(format + ":rounding=stochastic:seed=3"), best_isa());
  const std::size_t count = 64 * kTile;
  for (const float value : {0.3137f, -0.0719f, 0.8f, -0.9501f}) {
    std::vector<float> x(count, value);
    for (std::size_t i = 0; i < count; i += block) {
      x[i] = block > 1 ? 1.0f : value;  // the scale's own element
    }
    const auto wire = encode(*codec, x.data(), count, {0, 0, 1});
    std::vector<float> y(count);
    codec->decode({wire.data(), wire.size()}, y.data(), DType::kF32, count);
    double sum = 0;
    double squares = 0;
    double n = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (block == 1 || i % block != 0) {
        const double error = static_cast<double>(y[i]) - static_cast<double>(value);
        sum += error;
        squares += error * error;
        n += 1;
      }
    }
    // Five standard errors, and u's own step: sixteen bits of it leave a bias of half of 2^-16 of a code step.
    const double limit = 5 * std::sqrt(squares) / n + 2 * std::sqrt(squares / n) * 0x1p-16 + 1e-9;
    CHECK(std::fabs(sum / n) <= limit, "%s of %g: mean is off by %g, allowed %g", format.c_str(),
          static_cast<double>(value), sum / n, limit);
    CHECK(squares > 0, "%s of %g was not rounded", format.c_str(), static_cast<double>(value));
  }
}

// Neighbouring elements and successive calls are uncorrelated.
void draws_are_independent() {
  const auto codec = BlockCodec::make(parse_spec("int8:rounding=stochastic"), best_isa());
  const std::size_t count = 64 * kTile;
  std::vector<float> x(count, 0.5f);
  for (std::size_t i = 0; i < count; i += 128) {
    x[i] = 127.0f;
  }
  std::vector<float> draws[2];
  for (std::uint32_t call = 0; call < 2; ++call) {
    const auto wire = encode(*codec, x.data(), count, {0, call, 1});
    std::vector<float> y(count);
    codec->decode({wire.data(), wire.size()}, y.data(), DType::kF32, count);
    for (std::size_t i = 0; i < count; ++i) {
      if (i % 128 != 0) {
        draws[call].push_back(y[i] > 0.5f ? 1.0f : -1.0f);
      }
    }
  }
  const double n = static_cast<double>(draws[0].size());
  for (std::size_t lag = 1; lag <= 64; ++lag) {
    double product = 0;
    for (std::size_t i = 0; i + lag < draws[0].size(); ++i) {
      product += static_cast<double>(draws[0][i] * draws[0][i + lag]);
    }
    CHECK(std::fabs(product / n) < 5 / std::sqrt(n), "lag %zu: %g", lag, product / n);
  }
  double product = 0;
  for (std::size_t i = 0; i < draws[0].size(); ++i) {
    product += static_cast<double>(draws[0][i] * draws[1][i]);
  }
  CHECK(std::fabs(product / n) < 5 / std::sqrt(n), "calls: %g", product / n);
}

}  // namespace

int main() {
  known_answers();
  for (const FormatInfo& format : formats()) {
    repeats(format.name);
    mean_is_right(format.name, format.block);
  }
  draws_are_independent();
  return check::report("codec_stochastic");
}
