// geometry=factored and geometry=elementwise: the weights against float64, from what was reduced.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "gift/gift.h"
#include "gift_checks.h"

using namespace gift_test;
using namespace gcomm;
using collective::KeyTransform;

namespace {

constexpr std::size_t kRows = 37, kCols = 70;

std::unique_ptr<KeyTransform> make(const std::string& options, std::size_t rows = kRows,
                                   std::size_t cols = kCols) {
  return gift::make_key_transform(codec::parse_spec("gift+int8:geometry=" + options), codec::best_isa(), rows,
                                  cols);
}

// Rows and columns of sizes over three orders of magnitude.
std::vector<float> graded(std::size_t rows, std::size_t cols, std::uint64_t seed) {
  std::vector<float> x = normals(rows * cols, seed, 1.0f);
  for (std::size_t e = 0; e < x.size(); ++e) {
    x[e] *= std::pow(2.0f, static_cast<float>(e / cols * 7 % 10)) *
            std::pow(2.0f, -static_cast<float>(e % cols * 3 % 11));
  }
  return x;
}

void learn(KeyTransform& key, const void* reduced, DType dtype, float* residual = nullptr) {
  const std::uint64_t count = key.rows() * key.cols();
  if (key.learn(reduced, dtype, true)) key.settle(residual, {0, 1, 1.0f, count, count});
}
void learn(KeyTransform& key, const std::vector<float>& reduced, float* residual = nullptr) {
  learn(key, reduced.data(), DType::kF32, residual);
}

// Weights as docs/gift.md has them, in float64.
class Reference {
 public:
  Reference(std::size_t rows, std::size_t cols, bool by_element)
      : rows_(rows), cols_(cols), by_element_(by_element), factors_(rows + cols), squares_(rows * cols) {}

  void observe(const std::vector<float>& x) {
    const double keep = std::min(0.9, observed_ / (observed_ + 1.0));
    for (std::size_t i = 0; i < rows_ + cols_; ++i) {
      double sum = 0;
      const std::size_t n = i < rows_ ? cols_ : rows_;
      for (std::size_t k = 0; k < n; ++k) {
        const double v = static_cast<double>(i < rows_ ? x[i * cols_ + k] : x[k * cols_ + i - rows_]);
        sum += v * v;
      }
      factors_[i] = keep * factors_[i] + (1 - keep) * sum / static_cast<double>(n);
    }
    for (std::size_t e = 0; e < x.size(); ++e) {
      squares_[e] = keep * squares_[e] + (1 - keep) * static_cast<double>(x[e]) * static_cast<double>(x[e]);
    }
    ++observed_;
  }
  // Relative to the root mean square, at least 2^-8 (after k references 2^-3k): of a row times of a
  // column, or of an element once eight references were seen.
  std::vector<double> weights() const {
    std::vector<double> w(rows_ * cols_);
    if (by_element_ && observed_ >= 8) {
      double mean = 0;
      for (const double square : squares_) mean += square / static_cast<double>(squares_.size());
      for (std::size_t e = 0; e < w.size(); ++e) w[e] = std::max(std::sqrt(squares_[e] / mean), 0x1p-8);
      return w;
    }
    const double least = std::max(std::pow(2.0, -3 * observed_), 0x1p-8);
    double mean = 0;
    for (std::size_t i = 0; i < rows_; ++i) mean += factors_[i] / static_cast<double>(rows_);
    for (std::size_t e = 0; e < w.size(); ++e) {
      w[e] = std::max(std::sqrt(factors_[e / cols_] / mean), least) *
             std::max(std::sqrt(factors_[rows_ + e % cols_] / mean), least);
    }
    return w;
  }

 private:
  std::size_t rows_;
  std::size_t cols_;
  bool by_element_;
  double observed_ = 0;
  std::vector<double> factors_;
  std::vector<double> squares_;
};

// What map() multiplies by is 1 / w up to one factor for all, and at most 1; inverse() undoes it.
void check_weights(const KeyTransform& key, const std::vector<double>& w, const char* what) {
  CHECK(key.path() == KeyTransform::Path::kMapped, "%s", what);
  const std::size_t count = w.size();
  std::vector<float> ones(count, 1.0f);
  key.map().forward(0, count, ones.data());
  double factor = 0;
  float largest = 0;
  for (std::size_t e = 0; e < count; ++e) {
    factor = std::max(factor, static_cast<double>(ones[e]) * w[e]);
    largest = std::max(largest, ones[e]);
  }
  CHECK(largest <= 1.0f && largest > 0.9f, "%s: nothing overflows on its way: %g", what,
        static_cast<double>(largest));
  for (std::size_t e = 0; e < count; ++e) {
    // A moment is rounded to fp32 at each reference (a tenth of that fades with the next one), and so are two
    // factors and two products: half a unit each.
    CHECK(std::fabs(static_cast<double>(ones[e]) * w[e] / factor - 1) <= 14 * 0x1p-24,
          "%s: [%zu] %g is not %g / %g", what, e, static_cast<double>(ones[e]), factor, w[e]);
  }
  const std::vector<float> x = normals(count, 5, 3.0f);
  std::vector<float> y = x;
  key.map().forward(0, count, y.data());
  for (std::size_t e = 0; e < count; ++e) {
    // Two products on either side, each rounded by half a unit.
    CHECK(std::fabs(y[e] - x[e] * ones[e]) <= 4 * 0x1p-24f * std::fabs(y[e]), "%s", what);
  }
  key.map().inverse(0, count, y.data());
  for (std::size_t e = 0; e < count; ++e) {
    CHECK(std::fabs(y[e] - x[e]) <= 8 * 0x1p-24f * std::fabs(x[e]), "%s: [%zu] %g back from %g", what, e,
          static_cast<double>(y[e]), static_cast<double>(x[e]));
  }
}

void weights(const std::string& geometry) {
  const auto key = make(geometry + ":refresh=1");
  Reference reference(kRows, kCols, geometry == "elementwise");
  CHECK(key->path() == KeyTransform::Path::kDirect && key->digest() == 0);
  std::uint64_t digest = 0;
  for (std::uint64_t call = 0; call < 12; ++call) {
    const std::vector<float> reduced = graded(kRows, kCols, 100 + call);
    learn(*key, reduced);
    reference.observe(reduced);
    check_weights(*key, reference.weights(), (geometry + " " + std::to_string(call)).c_str());
    CHECK(key->digest() != digest, "%s", geometry.c_str());
    digest = key->digest();
    // A range in the middle, as tiles come.
    std::vector<float> all(kRows * kCols, 1.0f), part(1000, 1.0f);
    key->map().forward(0, all.size(), all.data());
    key->map().forward(777, part.size(), part.data());
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 777), "%s", geometry.c_str());
  }
  // Alike on every instruction set, and from bf16 what the same numbers give.
  const auto scalar = gift::make_key_transform(codec::parse_spec("gift+int8:refresh=1:geometry=" + geometry),
                                               codec::Isa::kScalar, kRows, kCols);
  const auto half = make(geometry + ":refresh=1");
  const Matrix halves(kRows, kCols, graded(kRows, kCols, 1), DType::kBF16);
  std::vector<float> same(kRows * kCols);
  for (std::size_t e = 0; e < same.size(); ++e) same[e] = halves.at(0, e);
  learn(*scalar, same);
  learn(*half, halves.view().data, DType::kBF16);
  CHECK(scalar->digest() == half->digest());
}

void special_references(const std::string& geometry) {
  const auto key = make(geometry + ":refresh=1");
  const std::vector<float> zeros(kRows * kCols, 0.0f);
  learn(*key, zeros);
  CHECK(key->path() == KeyTransform::Path::kDirect && key->digest() == 0, "%s: zeros teach nothing",
        geometry.c_str());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> reduced = graded(kRows, kCols, 4);
    reduced[2000] = bad;
    learn(*key, reduced);
    CHECK(key->path() == KeyTransform::Path::kDirect, "%s", geometry.c_str());
  }
  // A row and a column that never moved take the least weight; no division by zero.
  std::vector<float> gaps = graded(kRows, kCols, 5);
  for (std::size_t e = 0; e < gaps.size(); ++e) {
    if (e / kCols == 3 || e % kCols == 11) gaps[e] = 0.0f;
  }
  Reference reference(kRows, kCols, geometry == "elementwise");
  const auto fresh = make(geometry + ":refresh=1");
  for (int call = 0; call < 9; ++call) {
    learn(*fresh, gaps);
    reference.observe(gaps);
  }
  check_weights(*fresh, reference.weights(), (geometry + " with gaps").c_str());
  const std::uint64_t digest = fresh->digest();
  gaps[0] = std::numeric_limits<float>::infinity();
  learn(*fresh, gaps);
  CHECK(fresh->digest() == digest, "%s: an Inf teaches nothing", geometry.c_str());
  // The ends of fp32.
  for (const float size : {0x1p-140f, 0x1p127f}) {
    const auto extreme = make(geometry + ":refresh=1");
    std::vector<float> reduced = graded(kRows, kCols, 6);
    for (float& v : reduced) v = std::clamp(v, -1.0f, 1.0f) * size;
    for (int call = 0; call < 9; ++call) learn(*extreme, reduced);
    std::vector<float> x(kRows * kCols, std::numeric_limits<float>::max());
    extreme->map().forward(0, x.size(), x.data());
    CHECK(std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v) && v > 0; }), "%s",
          geometry.c_str());
  }
}

void refreshes(const std::string& geometry) {
  const auto key = make(geometry + ":refresh=3");
  std::uint64_t last = 0;
  for (std::uint64_t call = 0; call < 10; ++call) {
    learn(*key, graded(kRows, kCols, call));
    CHECK((key->digest() != last) == (call % 3 == 0 || call == 1), "%s, call %llu", geometry.c_str(),
          static_cast<unsigned long long>(call));
    last = key->digest();
  }
}

// Another tensor under the same key: direct at the next call, and weights from that call's sum alone.
void starts_anew(const std::string& geometry) {
  const auto key = make(geometry + ":refresh=1:ef=1");
  const std::size_t count = kRows * kCols;
  for (std::uint64_t call = 0; call < 12; ++call) learn(*key, graded(kRows, kCols, call));
  std::vector<float> other = graded(kRows, kCols, 40);
  for (std::size_t row = 0; row < kRows; ++row) {
    std::reverse(other.begin() + static_cast<std::ptrdiff_t>(row * kCols),
                 other.begin() + static_cast<std::ptrdiff_t>((row + 1) * kCols));
  }
  std::vector<float> residual = normals(count, 2, 1.0f);
  std::vector<float> worth = residual;
  key->map().inverse(0, count, worth.data());
  learn(*key, other, residual.data());
  CHECK(key->path() == KeyTransform::Path::kDirect && key->digest() == 0, "%s", geometry.c_str());
  CHECK(residual == worth, "%s: the residual is the caller's again", geometry.c_str());
  Reference reference(kRows, kCols, geometry == "elementwise");
  for (int call = 0; call < 3; ++call) {
    learn(*key, other);
    reference.observe(other);
    check_weights(*key, reference.weights(), (geometry + " anew").c_str());
  }
}

// What a residual is worth in the caller's coordinates does not change with the weights.
void residual_carried(const std::string& geometry) {
  const auto key = make(geometry + ":refresh=1:ef=1");
  const std::size_t count = kRows * kCols;
  std::vector<float> residual = normals(count, 2, 1.0f);
  const std::vector<float> worth = residual;  // before anything was learned they are the caller's
  for (std::uint64_t call = 0; call < 12; ++call) {
    learn(*key, graded(kRows, kCols, 50 + call), residual.data());
    std::vector<float> now = residual;
    key->map().inverse(0, count, now.data());
    for (std::size_t e = 0; e < count; ++e) {
      CHECK(std::fabs(now[e] - worth[e]) <= static_cast<float>(call + 1) * 16 * 0x1p-24f * std::fabs(worth[e]),
            "%s: [%zu] %g was %g", geometry.c_str(), e, static_cast<double>(now[e]),
            static_cast<double>(worth[e]));
    }
  }
}

void saved(const std::string& geometry) {
  const auto key = make(geometry + ":refresh=2");
  for (std::uint64_t call = 0; call < 19; ++call) {
    std::vector<std::uint8_t> state;
    key->save(state);
    const auto other = make(geometry + ":refresh=2");
    other->load(state.data(), state.size());
    CHECK(other->digest() == key->digest() && other->path() == key->path() && other->report() == key->report());
    std::vector<std::uint8_t> again;
    other->save(again);
    CHECK(again == state);
    learn(*key, graded(kRows, kCols, call));
    learn(*other, graded(kRows, kCols, call));
    CHECK(other->digest() == key->digest(), "%s, call %llu", geometry.c_str(),
          static_cast<unsigned long long>(call));
  }
  std::vector<std::uint8_t> state;
  key->save(state);
  const std::uint64_t digest = key->digest();
  CHECK_THROWS(key->load(state.data(), state.size() - 1), Code::kCodec);
  CHECK_THROWS(key->load(state.data(), 3), Code::kCodec);
  std::vector<std::uint8_t> bad = state;
  bad.push_back(0);
  CHECK_THROWS(key->load(bad.data(), bad.size()), Code::kCodec);
  bad = state;
  bad[8] = 2;  // learned: 0 or 1
  CHECK_THROWS(key->load(bad.data(), bad.size()), Code::kCodec);
  bad = state;
  bad[12 + 7] = 0xFF;  // a mean square: negative, or no number
  CHECK_THROWS(key->load(bad.data(), bad.size()), Code::kCodec);
  CHECK_THROWS(make(geometry + ":refresh=2", kCols, kCols)->load(state.data(), state.size()), Code::kCodec);
  CHECK(key->digest() == digest);
}

}  // namespace

int main() {
  for (const char* geometry : {"factored", "elementwise"}) {
    weights(geometry);
    special_references(geometry);
    refreshes(geometry);
    starts_anew(geometry);
    residual_carried(geometry);
    saved(geometry);
  }
  return check::report("gift_weighted");
}
