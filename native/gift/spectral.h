// geometry=spectral: a matrix travels in coordinates in which its leading singular directions do not drown the
// rest (docs/gift.md).
#pragma once

#include <memory>
#include <vector>

#include "collective/key_transform.h"
#include "gift/basis.h"
#include "gift/choice.h"
#include "gift/coordinates.h"
#include "gift/row_codec.h"

namespace gcomm::gift {

class SpectralKey final : public collective::KeyTransform, private codec::TileMap {
 public:
  SpectralKey(const codec::CodecSpec& spec, codec::Isa isa, std::uint64_t rows, std::uint64_t cols);

  // A matrix with very few rows or columns has none, and goes direct.
  static bool has_basis(std::uint64_t rows, std::uint64_t cols);

  Path path() const override;
  std::uint64_t digest() const override { return digest_; }
  std::size_t sides() const override { return choice_.way == Choice::Way::kSplit ? 2 : 0; }
  Side side(std::size_t index) const override;
  void prepare(const void* input, DType dtype, const float* residual, bool zero) override;
  const codec::TileMap& map() const override { return *this; }
  const codec::BlockCodec& block() const override { return *row_codec_; }
  void sides_arrived() override;
  void arrived(const float* whole, const Shard& shard, std::uint64_t end) override;
  void finish(float* whole, void* output, DType dtype) override;
  bool learn(const void* reduced, DType dtype, bool owner) override;
  std::size_t shared_bytes() const override;
  void share(std::uint8_t* dst) const override { basis_->save(dst); }
  void accept(const std::uint8_t* src) override { basis_->load(src, basis_->saved_bytes()); }
  void settle(float* residual, const Place& place) override;
  std::string report() const override;
  std::uint64_t rows() const override { return rows_; }
  std::uint64_t cols() const override { return cols_; }
  void save(std::vector<std::uint8_t>& out) const override;
  void load(const std::uint8_t* data, std::size_t bytes) override;

 private:
  // What a side's input becomes on the wire, and what everybody reads there.
  struct SideMemory {
    std::vector<float> input;
    std::vector<float> output;
    std::vector<std::uint8_t> wire;
  };

  void forward(std::uint64_t element, std::size_t count, float* x) const override;
  void inverse(std::uint64_t element, std::size_t count, float* x) const override;

  MatrixView view_of_sum(const float* whole) const;
  bool scales() const noexcept { return choice_.way == Choice::Way::kScale; }
  // Chooses a way for what the basis says now.
  void choose_way();
  // Takes the leading directions that were chosen off the basis, and whatever follows from them alone.
  void adopt();
  void encode_side(SideMemory& side) const;
  // The own shard of a residual is measured against the sum, the rest against this rank's input: to the input
  // and back. The shards are those of the way at hand.
  void weigh_as_input(float* residual, const Place& place) const;
  void weigh_as_sum(float* residual, const Place& place) const;
  void weigh(float* residual, const Place& place, float factor) const;

  const codec::CodecSpec spec_;
  const codec::Isa isa_;
  const std::uint64_t rows_;
  const std::uint64_t cols_;
  const std::shared_ptr<const codec::BlockCodec> block_;
  const std::shared_ptr<const codec::BlockCodec> side_block_;
  const double block_error_;
  const double side_error_;

  std::unique_ptr<Basis> basis_;  // null: too small a matrix
  Choice choice_;
  std::unique_ptr<RowCodec> row_codec_;  // mode=rows
  std::uint32_t calls_ = 0;
  std::uint64_t digest_ = 0;

  // Of the call at hand.
  Coordinates coordinates_;
  RankUpdate out_;
  RankUpdate back_;
  SideMemory p_;  // rank x cols
  SideMemory s_;  // rank x rows
  // mode=scale: what has arrived of the sum, by owner.
  struct Arrival {
    std::uint64_t first = 0;  // of the rows that lie in the shard with all of their elements
    std::uint64_t next = 0;   // the first one that is not among left's products yet
    std::uint64_t last = 0;   // past them
    std::vector<float> left;  // width x cols
  };
  std::vector<Arrival> arrivals_;
};

}  // namespace gcomm::gift
