// mode=rows: the wire format of a matrix whose rows' leading coordinates S = G V travel apart from the rest,
// G - Q(S) V^T (docs/gift.md). Row by row, so it is a codec like any other: it can be summed and encoded again
// by the owner of the rows, and what S loses when it is quantised is in the rest.
#pragma once

#include <memory>
#include <vector>

#include "codec/codec.h"

namespace gcomm::codec {
struct Driver;
}

namespace gcomm::gift {

// Consecutive directions whose coordinates share a format.
struct Band {
  std::size_t first = 0;
  std::size_t count = 0;
  std::shared_ptr<const codec::BlockCodec> block;
};

// The bands of `rank` directions: those of `side`, or by default the first ones in int6 and the others in int4.
std::vector<Band> row_bands(std::size_t rank, int side, codec::Isa isa);

// Rows that are coded together: so many that the rest fills a tile and no block of it straddles two groups.
std::size_t rows_together(std::size_t cols);

class RowCodec final : public codec::BlockCodec {
 public:
  // spec: of the codec, gift included; rest: its format without gift and error feedback.
  RowCodec(const codec::CodecSpec& spec, codec::Isa isa, std::shared_ptr<const codec::BlockCodec> rest,
           std::size_t cols, std::size_t rank);
  ~RowCodec() override;

  // To be called before anything is coded, and between calls. v: cols x padded_rank(rank), orthonormal columns.
  // The singular values of a matrix with so many rows, and none of them below `floor`, say how large
  // coordinates are.
  void set_basis(const float* v, const std::vector<double>& singular_values, double floor, std::size_t rows);

  std::size_t rank() const noexcept { return rank_; }
  bool fixed_length() const override { return true; }
  std::size_t granule() const override { return group_ * cols_; }
  std::size_t max_encoded_bytes(std::size_t count) const override;
  codec::EncodeResult encode(const codec::EncodeJob& job) const override;
  void decode(codec::Encoded in, void* dst, DType dtype, std::size_t count) const override;
  void decode_accumulate(codec::Encoded in, float* acc, std::size_t count) const override;
  codec::EncodeResult reduce_encode(const codec::ReduceJob& job) const override;

 private:
  struct Memory;
  struct Out;

  std::size_t bands_bytes(std::size_t rows) const;
  std::size_t group_bytes(std::size_t rows) const;
  void check_encoded(codec::Encoded in, std::size_t count) const;
  void check_count(std::size_t count) const;
  void check_capacity(std::size_t capacity, std::size_t count) const;
  // Elements as floats, zeros past them; returns whether the codec's policy put zeros in the place of some.
  bool load(const void* src, DType dtype, std::size_t begin, std::size_t count, float* x) const;
  // A group of `rows` in memory.x: adds the residual, if there is one, and puts its coordinates in memory.s.
  // Returns whether the values hold a NaN or an Inf.
  bool project(Memory& memory, std::size_t rows, const float* residual) const;
  // memory.s, encoded; and what that is read as, in memory.plus and minus. Both return the bytes.
  std::size_t encode_bands(Memory& memory, std::size_t rows, std::uint8_t* dst) const;
  std::size_t decode_bands(Memory& memory, const std::uint8_t* src, std::size_t rows) const;
  // After project(): encodes, writes what will be decoded to `out`, and the new residual.
  void encode_group(Memory& memory, std::size_t rows, codec::StreamPosition position, std::uint8_t* dst,
                    float* residual, Out out) const;
  void decode_slice(const Memory& memory, codec::Encoded rest, std::size_t done, std::size_t count,
                    float* values) const;
  // float* place(done): where elements go from there on; take(done, count, values): they are there.
  template <typename Place, typename Take>
  void decode_group(Memory& memory, const std::uint8_t* src, std::size_t rows, Place place, Take take) const;
  bool sum_group(Memory& memory, const codec::ReduceJob& job, std::size_t begin, std::size_t rows,
                 std::size_t offset) const;
  bool own_nonfinite(Memory& memory, const codec::ReduceJob& job, std::size_t begin, std::size_t count) const;

  const std::size_t cols_;
  const std::size_t rank_;
  const std::size_t width_;
  const std::size_t group_;
  const std::shared_ptr<const codec::BlockCodec> rest_;
  const std::vector<Band> bands_;
  std::vector<float> v_;      // cols x width
  std::vector<float> vt_;     // width x cols
  std::vector<float> scale_;  // of each direction's coordinates, a power of two near their size
  const codec::Driver& driver_;
  // A key's codec serves one call at a time.
  const std::unique_ptr<Memory> memory_;
};

}  // namespace gcomm::gift
