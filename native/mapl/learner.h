// Learns codewords from rows: each is the moving average of what it was nearest to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mapl/codebook.h"
#include "mapl/cpu/driver.h"

namespace gcomm::mapl {

class Learner {
 public:
  Learner(const CodebookShape& shape, std::uint64_t seed);

  const Codebook& codebook() const noexcept { return book_; }
  // Starts over from these, as if they had been learned.
  void load(const float* values);

  // z: vectors x subvector floats, with memory for a multiple of kSearchVectors; left with what all stages
  // leave of them. The first time codewords begin as some of the sub-vectors themselves, and are refined on
  // them; later each moves a little towards the mean of those that it is nearest to, and one that hardly any
  // comes to is replaced by a sub-vector drawn at random (Philox: the same on every run). Every sum is in
  // float64, in the order of the sub-vectors.
  void update(float* z, std::size_t vectors, const Driver& driver);

 private:
  void begin(std::size_t stage, const float* z, std::size_t vectors, const Driver& driver);
  void assign(std::size_t stage, const float* z, std::size_t vectors, const Driver& driver);
  // z's part that codeword `code` of a stage is replaced by, the round-th time in this update.
  const float* drawn(std::size_t stage, std::size_t code, std::uint32_t round, const float* z,
                     std::size_t vectors) const;
  // Moves a stage's codewords; whether one was replaced.
  bool average(std::size_t stage, const float* z, std::size_t vectors, double keep, std::uint32_t round);

  std::uint64_t seed_;
  Codebook book_;
  std::uint32_t updates_ = 0;
  bool learned_ = false;
  std::vector<double> usage_;  // of every codeword; 1 is an even share
  std::vector<double> sum_;    // usage times codeword
  std::vector<std::uint16_t> codes_;
  std::vector<std::uint64_t> counts_;  // of one stage
  std::vector<double> totals_;
  std::vector<float> mean_;
};

}  // namespace gcomm::mapl
