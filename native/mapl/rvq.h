// Residual vector quantisation of rows: a scale a row, and for each of its sub-vectors a code a stage.
// docs/wire-format.md, section 7, has every bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "mapl/codebook.h"
#include "mapl/cpu/driver.h"
#include "mapl/learner.h"

namespace gcomm::mapl {

// tokens x dim values of kF32, kBF16 or kF16, row by row.
struct Rows {
  const void* data;
  DType dtype;
  std::size_t tokens;
  std::size_t dim;
};

// The sub-vectors of a row, the last filled up with zeros.
constexpr std::size_t subvectors(std::size_t dim, std::size_t subvector) noexcept {
  return (dim + subvector - 1) / subvector;
}
// Exact: two bytes a row, then the codes' bits.
std::uint64_t encoded_bytes(const CodebookShape& shape, std::size_t dim, std::size_t tokens);

// Memory for encoding and learning, kept from call to call. One thread at a time.
class RowCoder {
 public:
  explicit RowCoder(codec::Isa isa) : driver_(find_driver(isa)) {}

  // Error(kNonFinite), before anything is written, for a NaN or an Inf.
  void encode(const Codebook& book, const Rows& z, std::uint8_t* out);
  // Error(kNonFinite), and nothing is learned, for a NaN or an Inf.
  void update(Learner& learner, const Rows& z);

 private:
  void measure(const Rows& z);
  void load(const Rows& z, std::size_t length, std::size_t begin, std::size_t count, float* to) const;

  const Driver& driver_;
  std::vector<std::uint16_t> scales_;  // bf16, of the rows at hand
  std::vector<float> vectors_;
  std::vector<std::uint16_t> codes_;
};

// Error(kCodec), before anything is written, for bytes that no encoder wrote: another length, a scale that is
// no finite number, a code beyond the codewords, or bits set behind the last code.
void decode(const Codebook& book, const std::uint8_t* data, std::uint64_t bytes, void* out, DType dtype,
            std::size_t tokens, std::size_t dim);

}  // namespace gcomm::mapl
