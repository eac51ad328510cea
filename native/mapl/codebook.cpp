#include "mapl/codebook.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/philox.h"

namespace gcomm::mapl {
namespace {

// Philox counters' last word, so that no two uses of a seed share numbers.
constexpr std::uint32_t kInitialCodewords = 0x4356514Du;  // "MQVC"
// What is left of a coefficient's size after a stage, roughly.
constexpr float kShrinkage = 0.625f;

void check(const char* name, std::size_t value, std::size_t least, std::size_t most) {
  if (value >= least && value <= most) {
    return;
  }
  throw Error(Code::kInvalid, std::string(name) + ": " + std::to_string(value) + ", expected " +
                                  std::to_string(least) + " to " + std::to_string(most));
}

// The sum of four uniform numbers, of standard deviation 1: exact, the same on every machine.
float about_normal(const PhiloxBlock& random) {
  std::int64_t sum = -2 * (std::int64_t{1} << 32);
  for (const std::uint32_t word : random.word) {
    sum += word;
  }
  return static_cast<float>(static_cast<double>(sum) * 0x1.bb67ae8584caap+0 * 0x1p-32);  // sqrt(3)
}

}  // namespace

unsigned CodebookShape::bits() const noexcept { return static_cast<unsigned>(std::bit_width(codewords - 1)); }

Codebook::Codebook(const CodebookShape& shape, std::uint64_t seed) : shape_(shape) {
  check("subvector", shape.subvector, 1, kMaxSubvector);
  check("stages", shape.stages, 1, kMaxStages);
  check("codewords", shape.codewords, 2, kMaxCodewords);
  padded_ = (shape.codewords + kSearchGroup - 1) / kSearchGroup * kSearchGroup;
  rows_.resize(shape.values());
  columns_.assign(shape.stages * shape.subvector * padded_, 0.0f);
  half_norms_.assign(shape.stages * padded_, std::numeric_limits<float>::infinity());
  std::vector<float> values(shape.subvector);
  float size = 1.0f;
  for (std::size_t s = 0; s < shape.stages; ++s) {
    for (std::size_t c = 0; c < shape.codewords; ++c) {
      for (std::size_t j = 0; j < shape.subvector; ++j) {
        const PhiloxBlock counter = {{static_cast<std::uint32_t>(j), static_cast<std::uint32_t>(c),
                                      static_cast<std::uint32_t>(s), kInitialCodewords}};
        values[j] = size * about_normal(philox4x32_10(seed, counter));
      }
      set(s, c, values.data());
    }
    size *= kShrinkage;
  }
}

void Codebook::set(std::size_t stage, std::size_t code, const float* values) {
  float* row = rows_.data() + (stage * shape_.codewords + code) * shape_.subvector;
  float* column = columns_.data() + stage * shape_.subvector * padded_ + code;
  double norm = 0.0;
  for (std::size_t j = 0; j < shape_.subvector; ++j) {
    const double x = values[j];
    norm += x * x;
    row[j] = values[j];
    column[j * padded_] = values[j];
  }
  half_norms_[stage * padded_ + code] = static_cast<float>(0.5 * norm);
}

void Codebook::load(const float* values) {
  const std::size_t length = shape_.subvector;
  for (std::size_t i = 0; i < shape_.values(); ++i) {
    if (!(std::fabs(values[i]) <= kLargestCodeword)) {
      throw Error(Code::kInvalid, "codebooks: element " + std::to_string(i % length) + " of codeword " +
                                      std::to_string(i / length % shape_.codewords) + " of stage " +
                                      std::to_string(i / length / shape_.codewords) +
                                      " is no number or larger than 2^30");
    }
  }
  for (std::size_t s = 0; s < shape_.stages; ++s) {
    for (std::size_t c = 0; c < shape_.codewords; ++c) {
      set(s, c, values + (s * shape_.codewords + c) * length);
    }
  }
}

}  // namespace gcomm::mapl
