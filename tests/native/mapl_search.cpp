// Nearest codewords: against float64 up to what rounding leaves open, the first of equal ones, and the same
// answers from every driver.
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "check.h"
#include "mapl/cpu/driver.h"
#include "mapl_data.h"

#if defined(__x86_64__)
const gcomm::mapl::Driver& emulated_avx512_search();
#endif

namespace {

using namespace gcomm::mapl;
using gcomm::Code;
using gcomm::codec::Isa;
using mapl_test::normals;

struct Named {
  const char* name;
  const Driver* driver;
};

std::vector<Named> drivers() {
  std::vector<Named> all = {{"scalar", &find_driver(Isa::kScalar)},
                            {"avx2", &find_driver(Isa::kAvx2)},
                            {"avx512", &find_driver(Isa::kAvx512)}};
#if defined(__x86_64__)
  all.push_back({"avx512 emulated", &emulated_avx512_search()});
#endif
  return all;
}

// A score is a chain of n = length + 1 roundings (the norm's own, and one a term) of sums that never exceed
// half_norm + sum |z_j c_j|: off by at most n 2^-24 of that, to first order; 1.001 covers the rest.
std::pair<double, double> score(const Codebook& book, std::size_t stage, std::size_t code, const float* z) {
  const float* c = book.codeword(stage, code);
  double exact = 0.0;
  double size = 0.0;
  for (std::size_t j = 0; j < book.shape().subvector; ++j) {
    exact += 0.5 * double{c[j]} * c[j] - double{z[j]} * c[j];
    size += 0.5 * double{c[j]} * c[j] + std::fabs(double{z[j]} * c[j]);
  }
  return {exact, 1.001 * 0x1p-24 * static_cast<double>(book.shape().subvector + 1) * size};
}

void check_nearest(const CodebookShape& shape, std::uint64_t seed) {
  const std::size_t vectors = 4 * kSearchVectors;
  const Codebook book(shape, seed);
  const std::vector<float> z = normals(vectors * shape.subvector, seed + 1, 1.0f);
  for (std::size_t s = 0; s < shape.stages; ++s) {
    std::vector<std::uint16_t> first(vectors);
    for (const Named& each : drivers()) {
      std::vector<std::uint16_t> codes(vectors, 0xFFFF);
      each.driver->nearest(book.stage(s), z.data(), vectors, codes.data());
      if (each.driver == &find_driver(Isa::kScalar)) {
        first = codes;
      }
      CHECK(codes == first, "%s: %zu x %zu", each.name, shape.codewords, shape.subvector);
    }
    for (std::size_t v = 0; v < vectors; ++v) {
      const float* x = z.data() + v * shape.subvector;
      CHECK(first[v] < shape.codewords);
      const auto [chosen, off] = score(book, s, first[v], x);
      for (std::size_t c = 0; c < shape.codewords; ++c) {
        const auto [other, other_off] = score(book, s, c, x);
        CHECK(chosen <= other + off + other_off, "code %d at %g, %zu at %g", first[v], chosen, c, other);
      }
    }
  }
}

// Every codeword twice and three times over, in places that fall to one lane and to different ones.
void check_ties() {
  CodebookShape shape;
  shape.stages = 1;
  const std::vector<float> z = normals(kSearchVectors * shape.subvector, 5, 1.0f);
  for (const auto& at : {std::array<std::size_t, 3>{3, 19, 255}, {0, 8, 16}, {17, 18, 97}, {200, 231, 232}}) {
    Codebook book(shape, 3);
    for (std::size_t v = 0; v < kSearchVectors; ++v) {
      for (const std::size_t code : at) {
        book.set(0, code, z.data() + v * shape.subvector);
      }
      for (const Named& each : drivers()) {
        std::uint16_t codes[kSearchVectors];
        each.driver->nearest(book.stage(0), z.data(), kSearchVectors, codes);
        CHECK(codes[v] == at[0], "%s: %d of %zu", each.name, codes[v], at[0]);
      }
    }
  }
  // Zeros score what the norms are: the smallest codeword.
  Codebook book(shape, 3);
  const std::vector<float> zero(kSearchVectors * shape.subvector, 0.0f);
  book.set(0, 77, zero.data());
  for (const Named& each : drivers()) {
    std::uint16_t codes[kSearchVectors];
    each.driver->nearest(book.stage(0), zero.data(), kSearchVectors, codes);
    CHECK(codes[0] == 77 && codes[5] == 77, "%s", each.name);
  }
}

// The largest that may be learned, against vectors of the same size: no score is Inf or no number.
void check_largest() {
  CodebookShape shape;
  shape.subvector = kMaxSubvector;
  shape.stages = 1;
  shape.codewords = 2;
  Codebook book(shape, 1);
  std::vector<float> values(shape.values(), kLargestCodeword);
  for (std::size_t j = 0; j < shape.subvector; ++j) {
    values[j] = -kLargestCodeword;
  }
  book.load(values.data());
  std::vector<float> z(kSearchVectors * shape.subvector, static_cast<float>(kMaxStages) * kLargestCodeword);
  for (const Named& each : drivers()) {
    std::uint16_t codes[kSearchVectors];
    each.driver->nearest(book.stage(0), z.data(), kSearchVectors, codes);
    CHECK(codes[0] == 1, "%s: %d", each.name, codes[0]);
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -2.0f * kLargestCodeword}) {
    std::vector<float> wrong = values;
    wrong.back() = bad;
    CHECK_THROWS(book.load(wrong.data()), Code::kInvalid);
    CHECK(book.values() == values);
  }
}

}  // namespace

int main() {
  for (const std::size_t subvector : {1, 3, 4, 8, 16}) {
    for (const std::size_t codewords : {2, 16, 31, 33, 64, 100, 256}) {
      check_nearest({subvector, 2, codewords}, subvector * 1000 + codewords);
    }
  }
  check_nearest({8, 1, 4096}, 9);
  check_ties();
  check_largest();
  for (const CodebookShape& wrong :
       {CodebookShape{0, 4, 256}, CodebookShape{257, 4, 256}, CodebookShape{8, 0, 256},
        CodebookShape{8, 17, 256}, CodebookShape{8, 4, 1}, CodebookShape{8, 4, 4097}}) {
    CHECK_THROWS(Codebook(wrong, 0), Code::kInvalid);
  }
  return check::report("mapl_search");
}
