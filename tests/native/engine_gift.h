// Matrices under GIFT codecs in a World: calls on all ranks, exact sums, and what may be lost.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "engine_world.h"

namespace gcomm::test {

struct MatrixShape {
  std::uint64_t rows;
  std::uint64_t cols;
  std::uint64_t count() const { return rows * cols; }
  std::string text() const { return std::to_string(rows) + " x " + std::to_string(cols); }
};

enum class Content { kGraded, kLowRank, kZero, kConstant, kHuge };

// Rank r's gradient of step `step`. Graded: the same twelve directions, whose sizes fall by 0.7 each, for all
// ranks and steps, coordinates and noise of its own.
inline std::vector<float> gradient(const MatrixShape& shape, Content content, int rank, int step) {
  std::vector<float> x(shape.count(), 0.0f);
  if (content == Content::kZero) return x;
  if (content == Content::kConstant)
    return std::vector<float>(shape.count(), 0.75f * static_cast<float>(rank + 1));
  std::mt19937_64 own(static_cast<std::uint64_t>(1000 * step + rank + 1)), shared(7);
  std::normal_distribution<float> normal;
  const int directions = content == Content::kLowRank ? 3 : 12;
  float size = 1.0f;
  const float noise = content == Content::kLowRank ? 0.0f : 0.05f;
  for (float& value : x) value = noise * normal(own);
  std::vector<float> left(shape.rows), right(shape.cols);
  for (int k = 0; k < directions; ++k, size *= 0.7f) {
    for (float& v : left) v = normal(shared);
    for (float& v : right) v = normal(shared);
    const float own_size = size * (1.0f + 0.2f * normal(own));
    for (std::uint64_t i = 0; i < shape.rows; ++i) {
      for (std::uint64_t j = 0; j < shape.cols; ++j) x[i * shape.cols + j] += own_size * left[i] * right[j];
    }
  }
  if (content == Content::kHuge) {
    // A sum over four ranks is still finite; along the leading directions it would not be.
    for (float& value : x) value = std::clamp(value, -1.0f, 1.0f) * 0x1p125f;
  }
  return x;
}

inline double frobenius(const std::vector<double>& x) {
  double sum = 0, largest = 0;
  for (const double v : x) largest = std::max(largest, std::fabs(v));
  if (largest == 0) return 0;
  for (const double v : x) sum += (v / largest) * (v / largest);
  return largest * std::sqrt(sum);
}

struct Exact {
  std::vector<double> sum;  // or mean
  double norms = 0;         // of the ranks' inputs, added up; of the mean: divided too
};

inline Exact exact(const std::vector<Bytes>& inputs, DType dtype, bool average) {
  Exact out;
  const double divisor = average ? static_cast<double>(inputs.size()) : 1.0;
  for (const Bytes& input : inputs) {
    const std::vector<float> values = to_floats(input, dtype);
    std::vector<double> wide(values.begin(), values.end());
    out.sum.resize(wide.size());
    for (std::size_t e = 0; e < wide.size(); ++e) out.sum[e] += wide[e] / divisor;
    out.norms += frobenius(wide) / divisor;
  }
  return out;
}

// One keyed matrix through all_reduce on every rank; the result, which is the same on all.
inline Bytes reduce_matrix(World& world, const std::vector<Bytes>& inputs, const MatrixShape& shape,
                           DType dtype, bool average, const std::vector<comm::Codec>& codecs,
                           const std::string& key, bool in_place = false,
                           std::vector<WorkRef>* works = nullptr) {
  std::vector<Bytes> in = inputs;
  std::vector<Bytes> out = inputs;
  for (Bytes& bytes : out) std::fill(bytes.begin(), bytes.end(), 0xA5);
  const std::vector<WorkRef> done = world.all([&](int r) {
    const auto i = static_cast<std::size_t>(r);
    const TensorView tensor{
        in[i].data(), in_place ? in[i].data() : out[i].data(), shape.count(), key, shape.rows, shape.cols};
    return world[r].all_reduce(&tensor, 1, dtype, average ? collective::Op::kAvg : collective::Op::kSum,
                               codecs[i], 0);
  });
  if (works != nullptr) *works = done;
  const std::vector<Bytes>& result = in_place ? in : out;
  for (std::size_t r = 0; r < result.size(); ++r) {
    CHECK(result[r] == result[0], "ranks 0 and %zu differ, %s %s", r, codecs[0]->text().c_str(),
          shape.text().c_str());
    CHECK(in_place || in[r] == inputs[r], "rank %zu's input was written", r);
  }
  return result[0];
}

inline std::vector<comm::Codec> make_codecs(int ranks, const std::string& text,
                                            codec::Isa isa = codec::best_isa()) {
  std::vector<comm::Codec> codecs;
  for (int r = 0; r < ranks; ++r) codecs.push_back(comm::make_codec(text, isa));
  return codecs;
}

inline std::vector<Bytes> gradients(int ranks, const MatrixShape& shape, Content content, int step,
                                    DType dtype) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < ranks; ++r) inputs.push_back(from_floats(gradient(shape, content, r, step), dtype));
  return inputs;
}

}  // namespace gcomm::test
