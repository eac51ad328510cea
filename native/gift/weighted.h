// geometry=factored and geometry=elementwise: every element is divided by its own running size, as Adam sees it
// (docs/gift.md).
#pragma once

#include <vector>

#include "base/error.h"
#include "collective/key_transform.h"

namespace gcomm::gift {

class WeightedKey final : public collective::KeyTransform, private codec::TileMap {
 public:
  WeightedKey(const codec::CodecSpec& spec, std::uint64_t rows, std::uint64_t cols);

  Path path() const override { return learned_ ? Path::kMapped : Path::kDirect; }
  std::uint64_t digest() const override { return digest_; }
  std::size_t sides() const override { return 0; }
  Side side(std::size_t) const override { return {}; }
  void prepare(const void*, DType, const float*, bool) override {}
  const codec::TileMap& map() const override { return *this; }
  const codec::BlockCodec& block() const override { throw Error(Code::kInternal, "weights have no codec"); }
  void sides_arrived() override {}
  void arrived(const float*, const Shard&, std::uint64_t) override {}
  void finish(float*, void*, DType) override {}
  bool learn(const void* reduced, DType dtype, bool owner) override;
  std::size_t shared_bytes() const override { return 0; }
  void share(std::uint8_t*) const override {}
  void accept(const std::uint8_t*) override {}
  std::size_t part_numbers() const override { return scratch_.size(); }
  bool part_is_due() override;
  void learn_part(const void* shard, DType dtype, std::uint64_t begin, std::uint64_t count,
                  double* part) override;
  bool learn_parts(const double* parts, int ranks) override;
  void settle(float* residual, const Place& place) override;
  std::string report() const override;
  std::uint64_t rows() const override { return rows_; }
  std::uint64_t cols() const override { return cols_; }
  void save(std::vector<std::uint8_t>& out) const override;
  void load(const std::uint8_t* data, std::size_t bytes) override;

 private:
  void forward(std::uint64_t element, std::size_t count, float* x) const override;
  void inverse(std::uint64_t element, std::size_t count, float* x) const override;

  bool factored() const noexcept { return geometry_ == codec::GiftSpec::Geometry::kFactored; }
  // by: out_ or back_.
  void multiply(const std::vector<float>& by, std::uint64_t element, std::size_t count, float* x) const;

  // Whether weights are of elements; before enough was observed, elementwise is factored too.
  bool by_element() const noexcept;
  // Squares of the reduced tensor into the moments. False, and nothing changes, where it holds a NaN or an Inf.
  bool observe(const void* reduced, DType dtype);
  // The sums in scratch_ into the factors; false where they are not finite, or where everything starts anew.
  bool take_sums();
  bool misfits() const;
  double kept() const;
  double least_weight() const;
  void observe_elements(const void* reduced, DType dtype);
  // Rows or columns are so short that their means are those of single elements: direct until enough was seen.
  bool too_few() const noexcept;
  void set_weights();
  template <typename Map>
  void map_residual(float* residual, const Place& place, Map map) const;
  void set_element_weights();

  const codec::GiftSpec::Geometry geometry_;
  const std::uint32_t refresh_;
  const std::uint64_t rows_;
  const std::uint64_t cols_;

  std::uint32_t calls_ = 0;
  std::uint32_t observed_ = 0;  // tensors that went into the moments
  bool learned_ = false;
  bool starts_anew_ = false;  // from observe() to settle(): the next call goes direct
  std::uint64_t digest_ = 0;
  std::vector<double> factors_;  // mean squares of rows, then of columns
  std::vector<float> moments_;   // elementwise: root mean squares of elements
  // What elements are multiplied by on the way out and back: a factor of the row and one of the column, or one
  // of the element.
  bool of_elements_ = false;
  std::vector<float> out_;
  std::vector<float> back_;
  std::vector<double> scratch_;
};

}  // namespace gcomm::gift
