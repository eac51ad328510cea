#include "gift/choice.h"

#include <algorithm>
#include <cmath>

#include "gift/row_codec.h"

namespace gcomm::gift {
namespace {

// d is never below: a matrix of low rank would ask for an inverse that magnifies whatever was rounded.
constexpr double kLeastDamping = 0x1p-10;
// Ranks tried where none is asked for.
constexpr std::uint32_t kRanks[] = {4, 8, 16, 32, 48, 64};
// Of the energy, what the next gradient has outside the basis of this one, whatever its spectrum says: measured
// on gradients some steps apart, where a spectrum that falls to nothing promised ten times too much.
constexpr double kDrift = 0.01;
// What mode=scale's error came to beside what the basis' own spectrum says of it, on the same gradients.
constexpr double kScaleDrift = 1.9;
// A group of rows must fit the shortest slot, with room to spare.
constexpr std::size_t kMostGroupBytes = std::size_t{96} << 10;
// A transform that gains less, in bits an element, is not worth its arithmetic.
constexpr double kLeastGain = 0.1;
// mode=scale multiplies the sum's own coordinates; beyond this ||G||^2 they could leave fp32.
constexpr double kMostScaled = 0x1p200;

// An element of a full tile.
double bits_of(const codec::BlockCodec& block) {
  return 8.0 * static_cast<double>(block.max_encoded_bytes(codec::kTile)) / static_cast<double>(codec::kTile);
}

// Energy in the first `rank` directions.
double energy(const Spectrum& spectrum, std::size_t rank) {
  double sum = 0;
  for (std::size_t i = 0; i < rank; ++i) sum += spectrum.leading[i] * spectrum.leading[i];
  return std::min(sum, spectrum.squared_norm);
}

double seen_outside(const Spectrum& spectrum, std::size_t rank) {
  return std::max(0.0, spectrum.squared_norm - energy(spectrum, rank));
}

double rest_energy(const Spectrum& spectrum, std::size_t rank) {
  return seen_outside(spectrum, rank) + kDrift * spectrum.squared_norm;
}

// The part of the energy that directions apart will leave in the rest, some steps after the basis: fitted to
// gradients of real training. Roots of roots: every machine computes them alike.
double rest_of_rows(const Spectrum& spectrum, std::size_t rank) {
  const double seen = std::min(1.0, seen_outside(spectrum, rank) / spectrum.squared_norm);
  const double eighth = std::sqrt(std::sqrt(std::sqrt(seen)));
  return std::min(1.0, 1.4 * std::sqrt(seen) * eighth + 0.02);  // seen^(5/8)
}

double rest_of_split(const Spectrum& spectrum, std::size_t rank) {
  const double seen = std::min(1.0, seen_outside(spectrum, rank) / spectrum.squared_norm);
  return std::min(1.0, 1.3 * std::sqrt(seen) * std::sqrt(std::sqrt(seen)) + 0.02);  // seen^(3/4)
}

Choice scaled(const Spectrum& spectrum, std::uint32_t rank, int alpha_eighths, double block_error,
              double bits) {
  // Energy of T(G): the leading values shrink by d on both sides. Noise spreads evenly over the coordinates,
  // and the inverse magnifies a leading one by 1/d on each side that it lies on.
  double shrunk = rest_energy(spectrum, rank);
  double growth = 0;
  for (std::size_t i = 0; i < rank; ++i) {
    const double d = damping(spectrum, rank, i, alpha_eighths);
    const double s = spectrum.leading[i] * d * d;
    shrunk += s * s;
    growth += 1.0 / (d * d) - 1.0;
  }
  const double magnified =
      (1.0 + growth / static_cast<double>(spectrum.rows)) * (1.0 + growth / static_cast<double>(spectrum.cols));
  Choice choice;
  choice.way = Choice::Way::kScale;
  choice.rank = rank;
  choice.predicted = kScaleDrift * block_error * std::sqrt(shrunk * magnified / spectrum.squared_norm);
  choice.bits = bits;
  return choice;
}

Choice split(const Spectrum& spectrum, std::uint32_t rank, double block_error, double side_error, double bits,
             double side_bits) {
  const double rest = rest_of_split(spectrum, rank);
  // What a side loses on its way out is in the rest, which is sent after it; only its way back counts.
  const double side = side_error * side_error * (1.0 - rest) / 2;
  const double cells = static_cast<double>(spectrum.rows) * static_cast<double>(spectrum.cols);
  const double extra = rank * (static_cast<double>(spectrum.rows) + static_cast<double>(spectrum.cols)) / cells;
  Choice choice;
  choice.way = Choice::Way::kSplit;
  choice.rank = rank;
  choice.predicted = std::sqrt(block_error * block_error * rest + side);
  choice.bits = bits + extra * side_bits;
  return choice;
}

Choice rows(const Spectrum& spectrum, std::uint32_t rank, double block_error, double bits, int side,
            codec::Isa isa) {
  double side_bits = 0;  // of a row
  for (const Band& band : row_bands(rank, side, isa)) {
    side_bits += bits_of(*band.block) * static_cast<double>(band.count);
  }
  Choice choice;
  choice.way = Choice::Way::kRows;
  choice.rank = rank;
  // What the coordinates lose is in the rest, both ways.
  choice.predicted = block_error * std::sqrt(rest_of_rows(spectrum, rank));
  choice.bits = bits + side_bits / static_cast<double>(spectrum.cols);
  return choice;
}

bool rows_fit(const Spectrum& spectrum, double bits) {
  const double cells = static_cast<double>(rows_together(spectrum.cols)) * static_cast<double>(spectrum.cols);
  return cells * bits / 8 < static_cast<double>(kMostGroupBytes);
}

double score(const Choice& choice) { return std::log2(std::max(choice.predicted, 1e-12)) + choice.bits; }

}  // namespace

double format_error(const codec::BlockCodec& block) {
  // Sums of four uniform numbers: bell-shaped, and the same everywhere.
  constexpr std::size_t kCount = 4 * codec::kTile;
  std::vector<float> x(kCount);
  std::uint32_t state = 1;
  for (float& value : x) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<double>(state >> 8) * 0x1p-24 - 0.5;
    }
    value = static_cast<float>(sum);
  }
  std::vector<std::uint8_t> wire(block.max_encoded_bytes(kCount));
  codec::EncodeJob job;
  job.src = x.data();
  job.count = kCount;
  job.dst = wire.data();
  job.capacity = wire.size();
  const std::size_t bytes = block.encode(job).bytes;
  std::vector<float> decoded(kCount);
  block.decode({wire.data(), bytes}, decoded.data(), DType::kF32, kCount);
  double lost = 0;
  double all = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double error = double{decoded[i]} - double{x[i]};
    lost += error * error;
    all += double{x[i]} * double{x[i]};
  }
  return std::sqrt(lost / all);
}

double damping(const Spectrum& spectrum, std::size_t rank, std::size_t i, int alpha_eighths) {
  const auto least = static_cast<double>(std::min(spectrum.rows, spectrum.cols));
  const double others = std::max(1.0, least - static_cast<double>(rank));
  const double rest = std::sqrt(seen_outside(spectrum, rank) / others + kDrift * spectrum.squared_norm / least);
  // (rest / s)^(alpha): products of repeated square roots, which every machine computes alike.
  double root = rest / spectrum.leading[i];
  double power = 1.0;
  for (int bit = 8; bit > 0; bit /= 2) {
    if ((alpha_eighths & bit) != 0) power *= root;
    root = std::sqrt(root);
  }
  return std::min(1.0, std::max(power, kLeastDamping));
}

Choice choose(const Spectrum& spectrum, const codec::GiftSpec& gift, const codec::BlockCodec& block,
              const codec::BlockCodec& side, double block_error, double side_error, codec::Isa isa) {
  using Mode = codec::GiftSpec::Mode;
  const double bits = bits_of(block);
  const double side_bits = bits_of(side);
  Choice direct;
  direct.predicted = block_error;
  direct.bits = bits;
  direct.why = "the spectrum promises no gain";
  if (spectrum.leading.empty()) direct.why = "nothing but zeros was reduced yet";

  const bool scalable = spectrum.squared_norm <= kMostScaled;
  if (gift.mode == Mode::kScale && !scalable) direct.why = "values so large that products could overflow";

  Choice best = direct;
  const bool asked = gift.mode != Mode::kAuto && gift.rank > 0;
  bool any = false;
  const auto consider = [&](const Choice& candidate) {
    if ((asked && !any) || score(candidate) < score(best)) best = candidate;
    any = true;
  };
  const auto found = static_cast<std::uint32_t>(spectrum.leading.size());
  for (const std::uint32_t listed : kRanks) {
    if (gift.rank > 0 && listed != kRanks[0]) break;
    const std::uint32_t rank =
        gift.rank > 0 ? std::min<std::uint32_t>(found, static_cast<std::uint32_t>(gift.rank)) : listed;
    if (rank == 0 || rank > found) continue;
    const auto may = [&gift](Mode mode) { return gift.mode == Mode::kAuto || gift.mode == mode; };
    if (may(Mode::kScale) && scalable) consider(scaled(spectrum, rank, gift.alpha_eighths, block_error, bits));
    if (may(Mode::kSplit)) consider(split(spectrum, rank, block_error, side_error, bits, side_bits));
    if (may(Mode::kRows)) {
      const Choice candidate = rows(spectrum, rank, block_error, bits, gift.side, isa);
      if (rows_fit(spectrum, candidate.bits)) consider(candidate);
    }
  }
  if (any && !asked && score(direct) - score(best) < kLeastGain) best = direct;
  if (best.way != Choice::Way::kDirect) {
    best.why = asked ? "asked for" : "least log2(error) + bits of the ways and ranks tried";
  }
  best.direct = block_error;
  best.direct_bits = bits;
  return best;
}

}  // namespace gcomm::gift
