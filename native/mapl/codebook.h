// The numbers of a residual vector quantiser: for each stage a list of codewords, all of one length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gcomm::mapl {

struct CodebookShape {
  std::size_t subvector = 8;
  std::size_t stages = 4;
  std::size_t codewords = 256;  // of each stage

  // Bits of a code on the wire.
  unsigned bits() const noexcept;
  std::size_t values() const noexcept { return stages * codewords * subvector; }
  bool operator==(const CodebookShape&) const = default;
};

inline constexpr std::size_t kMaxSubvector = 256;
inline constexpr std::size_t kMaxStages = 16;
inline constexpr std::size_t kMaxCodewords = 4096;
// No score of a nearest-codeword search, and no sum of codewords, comes near fp32's end with codewords up to
// here; what is learned from rows of root mean square 1 stays far below.
inline constexpr float kLargestCodeword = 0x1p30f;
// Codewords are searched in groups of this many; a stage is filled up with some that are never the nearest.
inline constexpr std::size_t kSearchGroup = 32;

// One stage as the search reads it.
struct Stage {
  const float* columns;     // subvector rows of `padded` floats: element j of every codeword
  const float* half_norms;  // padded: half of every codeword's squared length, Inf where there is none
  std::size_t subvector;
  std::size_t padded;
};

class Codebook {
 public:
  // All codewords from the seed alone, by integer arithmetic: about normal, smaller from stage to stage.
  Codebook(const CodebookShape& shape, std::uint64_t seed);

  const CodebookShape& shape() const noexcept { return shape_; }
  // subvector floats.
  const float* codeword(std::size_t stage, std::size_t code) const noexcept {
    return rows_.data() + (stage * shape_.codewords + code) * shape_.subvector;
  }
  void set(std::size_t stage, std::size_t code, const float* values);
  // All values, stage by stage, codeword by codeword. Error(kInvalid), and nothing changes, for one that is no
  // number or larger than kLargestCodeword.
  void load(const float* values);
  const std::vector<float>& values() const noexcept { return rows_; }
  Stage stage(std::size_t s) const noexcept {
    return {columns_.data() + s * shape_.subvector * padded_, half_norms_.data() + s * padded_,
            shape_.subvector, padded_};
  }

 private:
  CodebookShape shape_;
  std::size_t padded_;
  std::vector<float> rows_;
  std::vector<float> columns_;
  std::vector<float> half_norms_;
};

}  // namespace gcomm::mapl
