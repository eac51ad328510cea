// The basis as state: the same bits on every instruction set, unharmed by what it refuses, saved and loaded
// whole, and no allocation once it runs.
#include <array>
#include <limits>
#include <vector>

#include "allocations.h"
#include "base/error.h"
#include "gift_checks.h"

namespace {

using namespace gift_test;
using gcomm::Code;
using gcomm::codec::Isa;

constexpr Isa kIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

void check_bits() {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, cols, rank] : {std::array<std::size_t, 3>{50, 70, 5}, {203, 31, 16}, {2, 9, 1}}) {
      Matrix x(rows, cols, dtype, 1, 21);
      const std::vector<float> addend = normals(rows * cols, 22, 0.1f);
      MatrixView g = x.view();
      g.addend = addend.data();
      std::uint64_t digest = 0;
      for (const Isa isa : kIsas) {
        Basis basis(rows, cols, rank);
        CHECK(basis.update(g, 2, isa) && basis.update(g, 1, isa));
        check_orthonormal(basis, "bits");
        CHECK(isa == Isa::kScalar || basis.digest() == digest, "%zu x %zu on %s", rows, cols, isa_name(isa));
        digest = basis.digest();
      }
      Basis plain(rows, cols, rank);
      CHECK(plain.update(x.view(), 2, Isa::kAvx2) && plain.update(x.view(), 1, Isa::kAvx2));
      CHECK(plain.digest() != digest, "the addend was not added");
    }
  }
}

struct Snapshot {
  explicit Snapshot(const Basis& basis) : bytes(basis.saved_bytes()), digest(basis.digest()) {
    basis.save(bytes.data());
  }
  bool operator==(const Snapshot&) const = default;
  std::vector<std::uint8_t> bytes;
  std::uint64_t digest;
};

void check_failures() {
  CHECK_THROWS(Basis(1, 9, 1), Code::kInvalid);
  CHECK_THROWS(Basis(9, 1, 1), Code::kInvalid);
  CHECK_THROWS(Basis(5, 5, 0), Code::kInvalid);
  CHECK_THROWS(Basis(5, 9, 5), Code::kInvalid);
  Basis basis(20, 30, 3);
  CHECK(basis.rank() == 0 && basis.singular_values().empty() && basis.squared_norm() == 0.0);
  const Snapshot empty(basis);
  const Matrix zero(20, 30, std::vector<float>(600, 0.0f));
  CHECK(!basis.update(zero.view(), 1, Isa::kAvx2) && Snapshot(basis) == empty);
  Matrix x(20, 30, DType::kF32, 0, 31);
  CHECK(basis.update(x.view(), 1, Isa::kAvx2));
  const Snapshot good(basis);
  CHECK(!(good == empty) && good.digest != empty.digest);
  CHECK(!basis.update(zero.view(), 1, Isa::kAvx2) && Snapshot(basis) == good);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {std::size_t{0}, std::size_t{333}, std::size_t{599}}) {
      for (const Isa isa : kIsas) {
        Matrix y = x;
        y.set(where, bad);
        CHECK(!basis.update(y.view(), 1, isa) && Snapshot(basis) == good);
      }
    }
  }
  Matrix other(30, 20, DType::kF32, 0, 31);
  CHECK_THROWS(basis.update(other.view(), 1, Isa::kAvx2), Code::kInvalid);
  CHECK_THROWS(basis.update(x.view(), 0, Isa::kAvx2), Code::kInvalid);
  MatrixView wrong = x.view();
  wrong.dtype = DType::kI32;
  CHECK_THROWS(basis.update(wrong, 1, Isa::kAvx2), Code::kInvalid);
  CHECK(Snapshot(basis) == good);
  // As good as new after all that.
  Basis fresh(20, 30, 3);
  CHECK(fresh.update(x.view(), 1, Isa::kAvx2) && fresh.update(x.view(), 1, Isa::kAvx2));
  CHECK(basis.update(x.view(), 1, Isa::kAvx2) && basis.digest() == fresh.digest());
}

void check_saving() {
  Matrix x(25, 35, DType::kF32, 0, 41);
  Matrix y(25, 35, DType::kF32, 0, 42);
  Basis basis(25, 35, 5);
  CHECK(basis.update(x.view(), 3, Isa::kAvx2));
  const Snapshot saved(basis);
  CHECK(saved.bytes.size() == 8 + 40 + 40 + 4 * 60 * 5 + 8);
  Basis other(25, 35, 5);
  other.load(saved.bytes.data(), saved.bytes.size());
  CHECK(Snapshot(other) == saved && other.rank() == 5);
  CHECK(basis.update(y.view(), 1, Isa::kAvx2) && other.update(y.view(), 1, Isa::kScalar));
  CHECK(basis.digest() == other.digest() && basis.digest() != saved.digest);
  // Any byte changed, or any length, is refused and changes nothing.
  const Snapshot now(other);
  for (std::size_t at = 0; at < saved.bytes.size(); ++at) {
    std::vector<std::uint8_t> bad = saved.bytes;
    bad[at] ^= static_cast<std::uint8_t>(1u << at % 8);
    CHECK_THROWS(other.load(bad.data(), bad.size()), Code::kCodec);
  }
  CHECK_THROWS(other.load(saved.bytes.data(), saved.bytes.size() - 1), Code::kCodec);
  Basis wider(25, 36, 5);
  CHECK_THROWS(wider.load(saved.bytes.data(), saved.bytes.size()), Code::kCodec);
  Basis turned(35, 25, 5);
  CHECK_THROWS(turned.load(saved.bytes.data(), saved.bytes.size()), Code::kCodec);
  CHECK(Snapshot(other) == now);
  // Before the first update, too.
  Basis none(25, 35, 5);
  const Snapshot empty(none);
  other.load(empty.bytes.data(), empty.bytes.size());
  CHECK(other.rank() == 0 && Snapshot(other) == empty);
}

void check_allocations() {
  Matrix x(60, 50, DType::kF32, 0, 51);
  Matrix y(60, 50, DType::kBF16, 0, 52);
  const Matrix low(60, 50, with_spectrum(60, 50, geometric(2, 0.5), 53));
  Basis basis(60, 50, 6);
  CHECK(basis.update(low.view(), 1, Isa::kAvx2));
  allocations::counting = true;
  const bool all = basis.update(x.view(), 2, Isa::kAvx2) && basis.update(y.view(), 1, Isa::kScalar) &&
                   basis.update(low.view(), 1, Isa::kAvx2) && basis.update(x.view(), 1, Isa::kAvx2);
  allocations::counting = false;
  CHECK(all && allocations::count == 0, "%d allocations", allocations::count.load());
#if COUNTS_ALLOCATIONS
  allocations::counting = true;
  delete new Basis(60, 50, 6);
  allocations::counting = false;
  CHECK(allocations::count > 0);
#endif
}

}  // namespace

int main() {
  check_bits();
  check_failures();
  check_saving();
  check_allocations();
  return check::report("gift_basis_state");
}
