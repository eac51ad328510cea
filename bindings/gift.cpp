// A basis of GIFT by hand. Memory arrives as addresses that gcomm/gift.py has checked.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "module.h"

namespace gcomm_python {
namespace {

struct Basis {
  gcomm_gift_basis* handle = nullptr;

  Basis() = default;
  Basis(const Basis&) = delete;
  Basis& operator=(const Basis&) = delete;
  ~Basis() { gcomm_gift_basis_destroy(handle); }

  gcomm_gift_basis_info info() const {
    gcomm_gift_basis_info values{};
    values.struct_size = sizeof values;
    check(gcomm_gift_basis_get(handle, &values));
    return values;
  }
};

}  // namespace

void bind_gift(nb::module_& m) {
  nb::class_<Basis>(m, "Basis")
      .def(
          "__init__",
          [](Basis* self, std::uint64_t rows, std::uint64_t cols, std::uint64_t rank,
             const std::optional<std::string>& isa) {
            new (self) Basis();
            check(gcomm_gift_basis_create(
                rows, cols, rank, isa ? c_text(*isa, GCOMM_ERR_INVALID, "isa") : nullptr, &self->handle));
          },
          "rows"_a, "cols"_a, "rank"_a, "isa"_a.none() = nb::none())
      .def_prop_ro("rank", [](const Basis& b) { return b.info().rank; })
      .def_prop_ro("digest", [](const Basis& b) { return b.info().digest; })
      .def_prop_ro("squared_norm", [](const Basis& b) { return b.info().squared_norm; })
      .def_prop_ro("spectrum",
                   [](const Basis& b) {
                     std::vector<double> values(b.info().rank);
                     check(gcomm_gift_basis_read(b.handle, values.data(), nullptr, nullptr));
                     return values;
                   })
      .def(
          "update",
          [](Basis& b, std::uintptr_t reference, int dtype, std::int32_t rounds) {
            check_without_gil([&] {
              return gcomm_gift_basis_update(b.handle, reinterpret_cast<const void*>(reference),
                                             static_cast<gcomm_dtype>(dtype), rounds);
            });
          },
          "reference"_a, "dtype"_a, "rounds"_a)
      .def(
          "apply",
          [](Basis& b, std::uintptr_t matrix) {
            check_without_gil(
                [&] { return gcomm_gift_basis_apply(b.handle, reinterpret_cast<float*>(matrix)); });
          },
          "matrix"_a)
      .def(
          "inverse",
          [](Basis& b, std::uintptr_t matrix) {
            check_without_gil(
                [&] { return gcomm_gift_basis_inverse(b.handle, reinterpret_cast<float*>(matrix)); });
          },
          "matrix"_a)
      .def(
          "read",
          [](const Basis& b, std::uintptr_t u, std::uintptr_t v) {
            check(gcomm_gift_basis_read(b.handle, nullptr, reinterpret_cast<float*>(u),
                                        reinterpret_cast<float*>(v)));
          },
          "u"_a, "v"_a);
}

}  // namespace gcomm_python
