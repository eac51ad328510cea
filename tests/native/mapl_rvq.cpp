// Rows through codes and back: the same bytes on every instruction set, what learning gains, what is refused.
#include <cmath>
#include <limits>

#include "allocations.h"
#include "base/error.h"
#include "base/float.h"
#include "check.h"
#include "mapl/rvq.h"
#include "mapl_data.h"

namespace {

using namespace gcomm::mapl;
using gcomm::Code;
using gcomm::DType;
using gcomm::codec::Isa;
using mapl_test::normals;

Rows rows(const std::vector<float>& z, std::size_t dim) { return {z.data(), DType::kF32, z.size() / dim, dim}; }

std::vector<std::uint8_t> encoded(RowCoder& coder, const Codebook& book, const Rows& z) {
  std::vector<std::uint8_t> bytes(encoded_bytes(book.shape(), z.dim, z.tokens));
  coder.encode(book, z, bytes.data());
  return bytes;
}

double relative_error(const Codebook& book, const std::vector<float>& z, std::size_t dim) {
  RowCoder coder(Isa::kAvx2);
  const std::vector<std::uint8_t> bytes = encoded(coder, book, rows(z, dim));
  std::vector<float> back(z.size());
  decode(book, bytes.data(), bytes.size(), back.data(), DType::kF32, z.size() / dim, dim);
  double lost = 0.0;
  double all = 0.0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    lost += std::pow(double{z[i]} - back[i], 2);
    all += std::pow(double{z[i]}, 2);
  }
  return std::sqrt(lost / all);
}

// Learning, encoding, everything: the same bits wherever it runs.
void check_bits() {
  for (const CodebookShape& shape :
       {CodebookShape{8, 4, 256}, CodebookShape{5, 3, 100}, CodebookShape{4, 2, 16}}) {
    const std::size_t dim = 44;
    std::vector<float> values[2];
    std::vector<std::uint8_t> bytes[2];
    for (const int which : {0, 1}) {
      const Isa isa = which == 0 ? Isa::kScalar : gcomm::codec::best_isa();
      Learner learner(shape, 7);
      RowCoder coder(isa);
      for (std::uint64_t step = 0; step < 4; ++step) {
        coder.update(learner, rows(normals(dim * 60, step, 2.0f), dim));
      }
      values[which] = learner.codebook().values();
      bytes[which] = encoded(coder, learner.codebook(), rows(normals(dim * 33, 99, 0.1f), dim));
    }
    CHECK(values[0] == values[1] && bytes[0] == bytes[1]);
    CHECK(values[0] != Codebook(shape, 7).values());
    CHECK(Codebook(shape, 7).values() != Codebook(shape, 8).values());
  }
}

// Normal values at one bit a coefficient and stage: rate distortion allows 2^-S, and an eight-dimensional
// quantiser of one stage is known to reach about 0.55.
void check_learning() {
  const std::size_t dim = 64;
  Learner learner({8, 2, 256}, 1);
  RowCoder coder(Isa::kAvx2);
  const std::vector<float> test = normals(dim * 500, 1000, 3.0f);
  const double before = relative_error(learner.codebook(), test, dim);
  for (std::uint64_t step = 0; step < 30; ++step) {
    coder.update(learner, rows(normals(dim * 300, step, 3.0f), dim));
  }
  const double after = relative_error(learner.codebook(), test, dim);
  CHECK(after > 0.25 && after < 0.34 && after < 0.92 * before, "%g, before %g", after, before);

  // Rows of a few directions only are learned almost whole, and followed when they change: dead codewords go to
  // where the rows are now.
  const auto few = [&](std::uint64_t seed, float offset) {
    std::vector<float> z = normals(dim * 200, seed, 0.01f);
    for (std::size_t i = 0; i < z.size(); ++i) {
      z[i] += (i / dim % 7 == i % dim % 7 ? 2.0f : -0.5f) + offset * static_cast<float>(i % 3);
    }
    return z;
  };
  for (const float offset : {0.0f, 5.0f}) {
    for (std::uint64_t step = 0; step < 60; ++step) {
      coder.update(learner, rows(few(step, offset), dim));
    }
    const double error = relative_error(learner.codebook(), few(777, offset), dim);
    CHECK(error < 0.03, "offset %g: %g", static_cast<double>(offset), error);
  }
}

void check_values() {
  const std::size_t dim = 12;
  const Codebook book({8, 4, 256}, 3);
  RowCoder coder(Isa::kAvx2);
  // Of any size; zero rows come back as zeros, what overflows stays finite.
  for (const float size : {0x1p-120f, 1.0f, 0x1p126f}) {
    std::vector<float> z = normals(dim * 40, 4, size);
    std::fill(z.begin() + dim, z.begin() + 2 * dim, 0.0f);
    const std::vector<std::uint8_t> bytes = encoded(coder, book, rows(z, dim));
    std::vector<float> back(z.size());
    decode(book, bytes.data(), bytes.size(), back.data(), DType::kF32, 40, dim);
    for (std::size_t i = 0; i < z.size(); ++i) {
      CHECK(std::isfinite(back[i]) && (i / dim == 1 ? back[i] == 0.0f : std::fabs(back[i] - z[i]) <= 3 * size));
    }
  }
  const std::vector<float> largest(dim, std::numeric_limits<float>::max());
  const std::vector<std::uint8_t> bytes = encoded(coder, book, rows(largest, dim));
  std::vector<std::uint16_t> halves(dim);
  for (const auto& [dtype, infinity] : {std::pair{DType::kBF16, 0x7F80}, {DType::kF16, 0x7C00}}) {
    decode(book, bytes.data(), bytes.size(), halves.data(), dtype, 1, dim);
    for (const std::uint16_t half : halves) {
      CHECK((half & 0x7FFF) < infinity, "%x", half);
    }
  }
  // bf16 and fp16 rows are their values.
  std::vector<float> z = normals(dim * 9, 5, 1.0f);
  std::vector<std::uint16_t> as_bf16;
  std::vector<std::uint16_t> as_f16;
  std::vector<float> wide_bf16;
  std::vector<float> wide_f16;
  for (const float x : z) {
    as_bf16.push_back(gcomm::float_to_bf16(x));
    as_f16.push_back(gcomm::float_to_f16(x));
    wide_bf16.push_back(gcomm::bf16_to_float(as_bf16.back()));
    wide_f16.push_back(gcomm::f16_to_float(as_f16.back()));
  }
  CHECK(encoded(coder, book, {as_bf16.data(), DType::kBF16, 9, dim}) ==
        encoded(coder, book, rows(wide_bf16, dim)));
  CHECK(encoded(coder, book, {as_f16.data(), DType::kF16, 9, dim}) ==
        encoded(coder, book, rows(wide_f16, dim)));
  CHECK(encoded(coder, book, {nullptr, DType::kF32, 0, dim}).empty());
}

void check_refusals() {
  const std::size_t dim = 10;
  const std::size_t tokens = 5;
  const CodebookShape shape = {4, 3, 100};  // 7 bits, 5 * 3 * 3 codes: 315 bits, 5 behind them
  Learner learner(shape, 3);
  RowCoder coder(Isa::kAvx2);
  coder.update(learner, rows(normals(dim * 50, 1, 1.0f), dim));
  const std::vector<float> learned = learner.codebook().values();
  std::vector<float> z = normals(dim * tokens, 2, 1.0f);
  const std::vector<std::uint8_t> good = encoded(coder, learner.codebook(), rows(z, dim));
  CHECK(good.size() == 2 * tokens + 40);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {std::size_t{0}, z.size() - 1}) {
      std::vector<float> wrong = z;
      wrong[at] = bad;
      std::vector<std::uint8_t> out(good.size(), 0xEE);
      const std::vector<std::uint8_t> untouched = out;
      CHECK_THROWS(coder.encode(learner.codebook(), rows(wrong, dim), out.data()), Code::kNonFinite);
      CHECK_THROWS(coder.update(learner, rows(wrong, dim)), Code::kNonFinite);
      CHECK(out == untouched && learner.codebook().values() == learned);
    }
  }
  std::vector<float> out(z.size(), 5.0f);
  const auto refused = [&](std::vector<std::uint8_t> bytes, std::size_t rows_there) {
    CHECK_THROWS(
        decode(learner.codebook(), bytes.data(), bytes.size(), out.data(), DType::kF32, rows_there, dim),
        Code::kCodec);
    CHECK(out == std::vector<float>(z.size(), 5.0f));
  };
  refused(good, tokens - 1);
  refused({good.begin(), good.end() - 1}, tokens);
  std::vector<std::uint8_t> changed = good;
  changed.back() |= 0x80;  // behind the last code
  refused(changed, tokens);
  changed = good;
  changed[10] = 0xFF;  // the first code is 127
  refused(changed, tokens);
  for (const int high : {0x80, 0xBF, 0x7F}) {  // -0, negative, Inf or no number
    changed = good;
    changed[2 * 3] = 0x80;
    changed[2 * 3 + 1] = static_cast<std::uint8_t>(high);
    refused(changed, tokens);
  }
  decode(learner.codebook(), good.data(), good.size(), out.data(), DType::kF32, tokens, dim);
  CHECK(out != std::vector<float>(z.size(), 5.0f));
}

void check_allocations() {
  const std::size_t dim = 64;
  const std::vector<float> z = normals(dim * 100, 1, 1.0f);
  Learner learner({8, 4, 256}, 1);
  RowCoder coder(gcomm::codec::best_isa());
  std::vector<std::uint8_t> bytes(encoded_bytes(learner.codebook().shape(), dim, 100));
  std::vector<float> back(z.size());
  for (const bool counted : {false, true}) {
    allocations::counting = counted;
    coder.update(learner, rows(z, dim));
    coder.encode(learner.codebook(), rows(z, dim), bytes.data());
    decode(learner.codebook(), bytes.data(), bytes.size(), back.data(), DType::kF32, 100, dim);
    allocations::counting = false;
  }
  CHECK(allocations::count == 0, "%d allocations", allocations::count.load());
}

}  // namespace

int main() {
  check_bits();
  check_learning();
  check_values();
  check_refusals();
  check_allocations();
  return check::report("mapl_rvq");
}
