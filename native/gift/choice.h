// Which way a matrix travels, predicted from its spectrum (docs/gift.md derives the formulas).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace gcomm::gift {

struct Choice {
  enum class Way : std::uint8_t { kDirect, kScale, kSplit, kRows };

  Way way = Way::kDirect;
  std::uint32_t rank = 0;
  double predicted = 0;  // relative error of one quantisation
  double direct = 0;     // the same if the matrix went direct
  double bits = 0;       // an element, side information included
  double direct_bits = 0;
  std::string why;
};

// Relative root-mean-square error of a format on data of one size, measured on a fixed sequence.
double format_error(const codec::BlockCodec& block);

struct Spectrum {
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  const std::vector<double>& leading;  // singular values, descending
  double squared_norm = 0;
};

// Scale mode's d of the i-th of `rank` leading directions.
double damping(const Spectrum& spectrum, std::size_t rank, std::size_t i, int alpha_eighths);

// What costs least in log2(error) + bits: a bit an element halves an error. Options of the codec narrow the
// field.
Choice choose(const Spectrum& spectrum, const codec::GiftSpec& gift, const codec::BlockCodec& block,
              const codec::BlockCodec& side, double block_error, double side_error, codec::Isa isa);

}  // namespace gcomm::gift
