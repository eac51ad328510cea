// The skinny products: AVX2 gives the bits of the scalar chains for awkward shapes, addresses, slices, dtypes
// and special values, and the scalar chains are as near to the exact sums as n roundings may be.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/float.h"
#include "check.h"
#include "codec/codec.h"
#include "gift/cpu/driver.h"
#include "gift/products.h"
#include "gift_data.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace gift_test;
using gcomm::Code;
using gcomm::codec::Isa;

// Values between guards that must stay.
class Guarded {
 public:
  explicit Guarded(std::size_t count, float value = 0.0f) : storage_(count + 16, kGuard), count_(count) {
    std::fill_n(data(), count, value);
  }
  explicit Guarded(const std::vector<float>& x) : Guarded(x.size()) { std::copy(x.begin(), x.end(), data()); }
  float* data() { return storage_.data() + 8; }
  std::size_t size() const { return count_; }
  bool intact() const {
    for (std::size_t i = 0; i < 8; ++i) {
      if (storage_[i] != kGuard || storage_[8 + count_ + i] != kGuard) {
        return false;
      }
    }
    return true;
  }
  // NaNs are alike.
  bool same(const Guarded& other) const {
    for (std::size_t i = 8; i < 8 + count_; ++i) {
      const float a = storage_[i];
      const float b = other.storage_[i];
      if (gcomm::float_bits(a) != gcomm::float_bits(b) && !(std::isnan(a) && std::isnan(b))) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr float kGuard = 12345.0f;
  std::vector<float> storage_;
  std::size_t count_;
};

struct Products {
  Guarded left;
  Guarded right;
};

Products run(const MatrixView& g, std::size_t rank, const std::vector<float>& u, const std::vector<float>& v,
             const std::vector<std::size_t>& cuts, Isa isa) {
  const std::size_t padded = padded_rank(rank);
  Products out = {Guarded(padded * g.cols), Guarded(g.rows * padded, 77.0f)};
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    products(g, cuts[c], cuts[c + 1], rank, u.data(), out.left.data(), v.data(), out.right.data(), isa);
  }
  CHECK(out.left.intact() && out.right.intact(), "wrote outside");
  return out;
}

void check_bits(std::size_t rows, std::size_t cols, std::size_t rank, DType dtype, unsigned variant) {
  Matrix x(rows, cols, dtype, variant % 3, 100 * rows + cols + variant);
  if (variant & 4) {
    x.set(0, std::numeric_limits<float>::quiet_NaN());
    x.set(rows * cols - 1, -std::numeric_limits<float>::infinity());
    x.set(rows * cols / 2, std::numeric_limits<float>::infinity());
  }
  MatrixView g = x.view();
  g.zero_nonfinite = (variant & 8) != 0;
  std::vector<float> addend = normals(rows * cols, 5, 0.1f);
  addend[rows * cols / 3] = std::numeric_limits<float>::infinity();
  addend[0] = 3e38f;
  g.addend = variant & 16 ? addend.data() : nullptr;
  const std::vector<float> u = skinny(rows, rank, 6);
  const std::vector<float> v = skinny(cols, rank, 7);
  const std::string where = std::to_string(rows) + "x" + std::to_string(cols) + ", rank " +
                            std::to_string(rank) + ", dtype " + gcomm::dtype_info(dtype).name + ", variant " +
                            std::to_string(variant);
  Products scalar = run(g, rank, u, v, {0, rows}, Isa::kScalar);
  const Products wide = run(g, rank, u, v, {0, rows}, Isa::kAvx2);
  CHECK(scalar.left.same(wide.left), "left: %s", where.c_str());
  CHECK(scalar.right.same(wide.right), "right: %s", where.c_str());
  const Products sliced = run(g, rank, u, v, {0, rows / 3, rows / 3, rows / 2 + 1, rows}, Isa::kAvx512);
  CHECK(scalar.left.same(sliced.left), "left in slices: %s", where.c_str());
  CHECK(scalar.right.same(sliced.right), "right in slices: %s", where.c_str());
  // One product alone.
  Guarded left(padded_rank(rank) * cols);
  products(g, 0, rows, rank, u.data(), left.data(), nullptr, nullptr, Isa::kAvx2);
  Guarded right(rows * padded_rank(rank));
  products(g, 0, rows, rank, nullptr, nullptr, v.data(), right.data(), Isa::kAvx2);
  CHECK(left.same(scalar.left) && right.same(scalar.right), "one of the products: %s", where.c_str());
}

// |error| <= gamma_n sum |a b|, gamma_n = n e / (1 - n e), e = 2^-24.
void check_bound(std::size_t rows, std::size_t cols, std::size_t rank, Isa isa) {
  Matrix x(rows, cols, DType::kF32, 0, 9);
  const std::vector<float> u = skinny(rows, rank, 10);
  const std::vector<float> v = skinny(cols, rank, 11);
  const std::size_t padded = padded_rank(rank);
  Products out = run(x.view(), rank, u, v, {0, rows}, isa);
  const auto gamma = [](std::size_t n) {
    const double ne = static_cast<double>(n) * 0x1p-24;
    return ne / (1 - ne);
  };
  // Against the sum of `length` terms: the chain's error is at most gamma times the sum of their sizes.
  const auto near = [&](float got, std::size_t length, const auto& term) {
    double sum = 0;
    double size = 0;
    for (std::size_t i = 0; i < length; ++i) {
      sum += term(i);
      size += std::fabs(term(i));
    }
    return std::fabs(got - sum) <= gamma(length) * size;
  };
  for (std::size_t k = 0; k < padded; ++k) {
    for (std::size_t j = 0; j < cols; ++j) {
      const auto term = [&](std::size_t i) {
        return static_cast<double>(x.at(i, j)) * static_cast<double>(u[i * padded + k]);
      };
      CHECK(near(out.left.data()[k * cols + j], rows, term), "left %zu %zu", k, j);
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const auto term = [&](std::size_t j) {
        return static_cast<double>(x.at(i, j)) * static_cast<double>(v[j * padded + k]);
      };
      CHECK(near(out.right.data()[i * padded + k], cols, term), "right %zu %zu", i, k);
    }
  }
}

// Ranges of a matrix with the given columns, each by both, and once more cut in two.
void check_update(std::size_t cols, std::size_t terms) {
  const std::size_t rows = 41;
  const std::vector<float> l = normals(rows * terms, 12, 1.0f);
  const std::vector<float> r = normals(terms * cols, 13, 1.0f);
  const std::vector<float> x = normals(rows * cols, 14, 1.0f);
  const std::size_t all = rows * cols;
  const std::size_t starts[] = {0, 1, cols - 1, cols, cols + cols / 2, 3 * cols + 5 % cols};
  const std::size_t counts[] = {1, 2, cols, cols + 1, 5 * cols, 9 * cols + cols / 2 + 1, all};
  for (const std::size_t start : starts) {
    for (const std::size_t wanted : counts) {
      const std::size_t count = std::min(wanted, all - start);
      Guarded scalar(std::vector<float>(x.begin() + start, x.begin() + start + count));
      Guarded wide = scalar;
      Guarded cut = scalar;
      rank_update(scalar.data(), start, count, cols, terms, l.data(), r.data(), Isa::kScalar);
      rank_update(wide.data(), start, count, cols, terms, l.data(), r.data(), Isa::kAvx2);
      const std::size_t half = count / 2;
      rank_update(cut.data(), start, half, cols, terms, l.data(), r.data(), Isa::kAvx2);
      rank_update(cut.data() + half, start + half, count - half, cols, terms, l.data(), r.data(), Isa::kAvx512);
      CHECK(scalar.same(wide) && wide.intact(), "%zu columns, %zu terms: %zu from %zu", cols, terms, count,
            start);
      CHECK(scalar.same(cut) && cut.intact(), "%zu columns, %zu terms: %zu from %zu, cut", cols, terms, count,
            start);
    }
  }
  // Against float64.
  Guarded y(x);
  rank_update(y.data(), 0, all, cols, terms, l.data(), r.data(), Isa::kAvx2);
  for (std::size_t e = 0; e < all; ++e) {
    double sum = static_cast<double>(x[e]);
    double size = std::fabs(sum);
    for (std::size_t k = 0; k < terms; ++k) {
      const double term =
          static_cast<double>(l[e / cols * terms + k]) * static_cast<double>(r[k * cols + e % cols]);
      sum += term;
      size += std::fabs(term);
    }
    CHECK(std::fabs(y.data()[e] - sum) <= static_cast<double>(terms) * 0x1.001p-24 * size, "element %zu", e);
  }
}

// Which loops run, and that a host's flush-to-zero changes nothing.
void check_environment() {
  CHECK(&find_driver(Isa::kScalar) == &scalar_driver());
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    CHECK(&find_driver(Isa::kAvx2) == &avx2_driver() && &find_driver(Isa::kAvx512) == &avx2_driver());
  }
  Matrix x(20, 30, normals(600, 3, 0x1p-130f));
  const std::vector<float> u = skinny(20, 3, 1);
  const std::vector<float> v = skinny(30, 3, 2);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2}) {
    const Products plain = run(x.view(), 3, u, v, {0, 20}, isa);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    const Products flushed = run(x.view(), 3, u, v, {0, 20}, isa);
    CHECK((_mm_getcsr() & 0x8040) == 0x8040, "the host's setting was lost");
    _mm_setcsr(before);
    CHECK(plain.left.same(flushed.left) && plain.right.same(flushed.right), "flush-to-zero changed bits");
  }
#endif
}

void check_refusals() {
  Matrix x(4, 4, DType::kF32, 0, 1);
  MatrixView g = x.view();
  float some[32] = {};
  CHECK_THROWS(products(g, 0, 5, 1, some, some, nullptr, nullptr, Isa::kScalar), Code::kInvalid);
  CHECK_THROWS(products(g, 3, 2, 1, some, some, nullptr, nullptr, Isa::kScalar), Code::kInvalid);
  CHECK_THROWS(products(g, 0, 4, 0, some, some, nullptr, nullptr, Isa::kScalar), Code::kInvalid);
  CHECK_THROWS(products(g, 0, 4, 1, some, nullptr, nullptr, nullptr, Isa::kScalar), Code::kInvalid);
  g.dtype = DType::kF64;
  CHECK_THROWS(products(g, 0, 4, 1, some, some, nullptr, nullptr, Isa::kScalar), Code::kInvalid);
  CHECK_THROWS(rank_update(some, 0, 1, 4, 7, some, some, Isa::kScalar), Code::kInvalid);
  CHECK_THROWS(rank_update(some, 0, 1, 0, 8, some, some, Isa::kScalar), Code::kInvalid);
}

}  // namespace

int main() {
  constexpr std::size_t kShapes[][2] = {{1, 1},  {1, 9},   {7, 1},    {2, 3},    {5, 8},    {24, 192},
                                        {25, 7}, {31, 33}, {47, 193}, {50, 200}, {13, 409}, {97, 31}};
  unsigned variant = 0;
  for (const auto& shape : kShapes) {
    for (const std::size_t rank :
         {std::size_t{1}, std::size_t{8}, std::size_t{12}, std::size_t{24}, std::size_t{33}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        check_bits(shape[0], shape[1], rank, dtype, variant);
        variant = (variant + 7) % 32;
      }
    }
  }
  for (unsigned v = 0; v < 32; ++v) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      check_bits(29, 205, 9, dtype, v);
    }
  }
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2}) {
    check_bound(61, 203, 8, isa);
    check_bound(300, 5, 3, isa);
  }
  for (const std::size_t cols :
       {std::size_t{1}, std::size_t{5}, std::size_t{24}, std::size_t{67}, std::size_t{530}}) {
    for (const std::size_t terms : {std::size_t{8}, std::size_t{16}, std::size_t{72}, std::size_t{136}}) {
      check_update(cols, terms);
    }
  }
  check_environment();
  check_refusals();
  return check::report("gift_products");
}
