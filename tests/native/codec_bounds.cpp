// How far one quantisation moves each element, at most: the bounds that docs/codecs.md states, element by
// element.
#include <algorithm>
#include <cmath>

#include "codec_harness.h"
#include "format_bounds.h"

namespace {

using namespace codec_test;
using format_bounds::kRows;
using format_bounds::Row;

std::vector<float> round_trip(const BlockCodec& codec, const std::vector<float>& x) {
  std::vector<std::uint8_t> wire(codec.max_encoded_bytes(x.size()));
  EncodeJob job;
  job.src = x.data();
  job.count = x.size();
  job.dst = wire.data();
  job.capacity = wire.size();
  job.position.stream = 17;
  codec.encode(job);
  std::vector<float> out(x.size());
  codec.decode({wire.data(), wire.size()}, out.data(), DType::kF32, x.size());
  return out;
}

// Of every run of `length` elements: the largest finite magnitude, and whether all are finite.
struct Extent {
  double largest = 0;
  bool finite = true;
};
std::vector<Extent> extents(const std::vector<float>& x, std::size_t length) {
  std::vector<Extent> out((x.size() + length - 1) / length);
  for (std::size_t i = 0; i < x.size(); ++i) {
    Extent& extent = out[i / length];
    if (std::isfinite(x[i])) {
      extent.largest = std::max(extent.largest, std::fabs(static_cast<double>(x[i])));
    } else {
      extent.finite = false;
    }
  }
  return out;
}

void check_row(const Row& row, const std::string& options, double widen, Data kind) {
  const std::string text = row.name + options;
  const auto codec = BlockCodec::make(parse_spec(text), best_isa());
  const std::vector<float> x = make_data(kind, 3 * kTile + 1234, 7);
  const std::vector<float> y = round_trip(*codec, x);
  const std::vector<Extent> blocks = extents(x, row.block);
  const std::vector<Extent> tiles = extents(x, kTile);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double in_block = blocks[i / row.block].largest;
    const double in_tile = tiles[i / kTile].largest;
    if (!std::isfinite(x[i])) {
      CHECK(!std::isfinite(y[i]), "%s lost a NaN or an Inf at %zu", text.c_str(), i);
      continue;
    }
    if (!codec->format().has_nan && !blocks[i / row.block].finite) {
      CHECK(std::isnan(y[i]), "%s: a marked block decodes to NaN, %zu", text.c_str(), i);
      continue;
    }
    const double a = std::fabs(static_cast<double>(x[i]));
    const double error = std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    // Three binary32 roundings besides the format's, and saturation within one bf16 (or e4m3) step of FLT_MAX.
    double bound = widen * row.bound(a, in_block, in_tile) + a * 0x1p-21 + 0x1p-149;
    if (in_block > 0x1p126) {
      bound = std::max(bound, a / 4 + 0x1p-126);
    }
    CHECK(std::isfinite(y[i]), "%s made %a infinite", text.c_str(), static_cast<double>(x[i]));
    CHECK(error <= (row.block == 1 && row.bound(1, 1, 1) == 0 ? 0 : bound),
          "%s[%zu]: %a becomes %a, off by %g, allowed %g", text.c_str(), i, static_cast<double>(x[i]),
          static_cast<double>(y[i]), error, bound);
  }
}

// The transform spreads a block's error over its group: in the 2-norm it is the format's own.
void check_hadamard(const char* format, double relative) {
  for (const char* size : {"", ":size=128", ":size=256"}) {
    const std::string text = std::string("hadamard+") + format + size;
    const auto codec = BlockCodec::make(parse_spec(text), best_isa());
    const std::vector<float> x = make_data(Data::kNormal, 2 * kTile + 77, 5);
    const std::vector<float> y = round_trip(*codec, x);
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
      norm += std::pow(static_cast<double>(x[i]), 2);
    }
    CHECK(std::sqrt(error / norm) < relative, "%s: %g", text.c_str(), std::sqrt(error / norm));
    // One large element: its energy reaches the whole group, and comes back.
    std::vector<float> spike(256, 0.0f);
    spike[100] = 1000.0f;
    const std::vector<float> back = round_trip(*codec, spike);
    for (std::size_t i = 0; i < spike.size(); ++i) {
      CHECK(std::fabs(back[i] - spike[i]) <= 1000.0f * static_cast<float>(relative), "%s[%zu] %g", text.c_str(),
            i, static_cast<double>(back[i]));
    }
  }
}

void check_search() {
  for (const char* name : {"mxfp4", "nvfp4"}) {
    const std::vector<float> x = make_data(Data::kNormal, 64 * kTile, 9);
    double error[2] = {0, 0};
    for (int search = 0; search < 2; ++search) {
      const auto codec =
          BlockCodec::make(parse_spec(std::string(name) + (search ? ":scale=search" : "")), best_isa());
      const std::vector<float> y = round_trip(*codec, x);
      for (std::size_t i = 0; i < x.size(); ++i) {
        error[search] += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
      }
    }
    // mxfp4's scales are powers of two, so the second candidate is the same one or twice that: hardly ever
    // better.
    const double gain = std::string(name) == "nvfp4" ? 0.95 : 1.0;
    CHECK(error[1] <= gain * error[0], "%s: %g with search, %g without", name, error[1], error[0]);
  }
}

}  // namespace

int main() {
  CHECK(std::size(kRows) == formats().size());
  for (std::size_t i = 0; i < std::size(kRows); ++i) {
    CHECK(formats()[i].name == std::string(kRows[i].name) && formats()[i].block == kRows[i].block);
    for (const Data kind : kAllData) {
      check_row(kRows[i], "", 1.0, kind);
      if (kRows[i].bound(1, 1, 1) != 0) {
        check_row(kRows[i], ":rounding=stochastic", 2.0, kind);
      }
    }
  }
  check_hadamard("int8", 0.02);
  check_hadamard("int4", 0.2);
  check_hadamard("fp8_e4m3", 0.05);
  check_hadamard("nvfp4", 0.2);
  check_search();
  return check::report("codec_bounds");
}
