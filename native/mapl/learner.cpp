#include "mapl/learner.h"

#include <algorithm>

#include "base/philox.h"

namespace gcomm::mapl {
namespace {

constexpr std::uint32_t kReplacements = 0x4452514Du;  // see codebook.cpp
constexpr double kKeep = 0.97;                        // of an average, at an update
constexpr double kDead = 0.03;                        // an even share is 1
constexpr std::uint32_t kFirstRounds = 10;

}  // namespace

Learner::Learner(const CodebookShape& shape, std::uint64_t seed)
    : seed_(seed),
      book_(shape, seed),
      usage_(shape.stages * shape.codewords),
      sum_(shape.values()),
      counts_(shape.codewords),
      totals_(shape.codewords * shape.subvector),
      mean_(shape.subvector) {}

void Learner::load(const float* values) {
  book_.load(values);
  std::fill(usage_.begin(), usage_.end(), 1.0);
  std::copy(values, values + sum_.size(), sum_.begin());
  learned_ = true;
}

void Learner::update(float* z, std::size_t vectors, const Driver& driver) {
  if (vectors == 0) {
    return;
  }
  const CodebookShape& shape = book_.shape();
  codes_.resize(std::max(codes_.size(), vectors + kSearchVectors));
  std::fill(z + vectors * shape.subvector,
            z + (vectors + kSearchVectors - 1) / kSearchVectors * kSearchVectors * shape.subvector, 0.0f);
  for (std::size_t s = 0; s < shape.stages; ++s) {
    if (!learned_) {
      begin(s, z, vectors, driver);
    }
    assign(s, z, vectors, driver);
    if (learned_ && average(s, z, vectors, kKeep, 0)) {
      assign(s, z, vectors, driver);  // nothing may be left of what a codeword was that is gone
    }
    for (std::size_t v = 0; v < vectors; ++v) {
      const float* codeword = book_.codeword(s, codes_[v]);
      for (std::size_t j = 0; j < shape.subvector; ++j) {
        z[v * shape.subvector + j] -= codeword[j];
      }
    }
  }
  learned_ = true;
  ++updates_;
}

void Learner::begin(std::size_t stage, const float* z, std::size_t vectors, const Driver& driver) {
  for (std::size_t c = 0; c < book_.shape().codewords; ++c) {
    book_.set(stage, c, drawn(stage, c, kFirstRounds, z, vectors));
  }
  for (std::uint32_t round = 0; round < kFirstRounds; ++round) {
    assign(stage, z, vectors, driver);
    average(stage, z, vectors, 0.0, round);
  }
}

void Learner::assign(std::size_t stage, const float* z, std::size_t vectors, const Driver& driver) {
  const std::size_t searched = (vectors + kSearchVectors - 1) / kSearchVectors * kSearchVectors;
  driver.nearest(book_.stage(stage), z, searched, codes_.data());
}

const float* Learner::drawn(std::size_t stage, std::size_t code, std::uint32_t round, const float* z,
                            std::size_t vectors) const {
  const PhiloxBlock counter = {{updates_, static_cast<std::uint32_t>(code),
                                static_cast<std::uint32_t>(stage) << 16 | round, kReplacements}};
  const PhiloxBlock random = philox4x32_10(seed_, counter);
  const std::uint64_t wide = std::uint64_t{random.word[1]} << 32 | random.word[0];
  return z + wide % vectors * book_.shape().subvector;
}

bool Learner::average(std::size_t stage, const float* z, std::size_t vectors, double keep,
                      std::uint32_t round) {
  bool replaced = false;
  const CodebookShape& shape = book_.shape();
  const std::size_t length = shape.subvector;
  std::fill(counts_.begin(), counts_.end(), 0);
  std::fill(totals_.begin(), totals_.end(), 0.0);
  for (std::size_t v = 0; v < vectors; ++v) {
    ++counts_[codes_[v]];
    double* total = totals_.data() + codes_[v] * length;
    for (std::size_t j = 0; j < length; ++j) {
      total[j] += z[v * length + j];
    }
  }
  const double share = static_cast<double>(shape.codewords) / static_cast<double>(vectors);
  for (std::size_t c = 0; c < shape.codewords; ++c) {
    double& usage = usage_[stage * shape.codewords + c];
    double* sum = sum_.data() + (stage * shape.codewords + c) * length;
    usage = keep * usage + (1.0 - keep) * share * static_cast<double>(counts_[c]);
    for (std::size_t j = 0; j < length; ++j) {
      sum[j] = keep * sum[j] + (1.0 - keep) * share * totals_[c * length + j];
    }
    if (usage < kDead) {
      const float* from = drawn(stage, c, round, z, vectors);
      usage = 1.0;
      std::copy(from, from + length, sum);
      replaced = true;
    }
    for (std::size_t j = 0; j < length; ++j) {
      mean_[j] = static_cast<float>(sum[j] / usage);
    }
    book_.set(stage, c, mean_.data());
  }
  return replaced;
}

}  // namespace gcomm::mapl
