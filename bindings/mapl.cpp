// The quantiser of MAPL by hand. Memory arrives as addresses that gcomm/mapl.py has checked.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "module.h"

namespace gcomm_python {
namespace {

struct Rvq {
  gcomm_mapl_rvq* handle = nullptr;

  Rvq() = default;
  Rvq(const Rvq&) = delete;
  Rvq& operator=(const Rvq&) = delete;
  ~Rvq() { gcomm_mapl_rvq_destroy(handle); }
};

}  // namespace

void bind_mapl(nb::module_& m) {
  nb::class_<Rvq>(m, "Rvq")
      .def(
          "__init__",
          [](Rvq* self, std::uint64_t dim, std::uint32_t subvector, std::uint32_t stages,
             std::uint32_t codewords, std::uint64_t seed, const std::optional<std::string>& isa) {
            new (self) Rvq();
            gcomm_mapl_rvq_config config{};
            config.struct_size = sizeof config;
            config.dim = dim;
            config.subvector = subvector;
            config.stages = stages;
            config.codewords = codewords;
            config.seed = seed;
            config.isa = isa ? c_text(*isa, GCOMM_ERR_INVALID, "isa") : nullptr;
            check(gcomm_mapl_rvq_create(&config, &self->handle));
          },
          "dim"_a, "subvector"_a, "stages"_a, "codewords"_a, "seed"_a, "isa"_a.none() = nb::none())
      .def(
          "encoded_bytes",
          [](const Rvq& r, std::uint64_t tokens) {
            std::uint64_t bytes = 0;
            check(gcomm_mapl_rvq_encoded_bytes(r.handle, tokens, &bytes));
            return bytes;
          },
          "tokens"_a)
      .def(
          "update",
          [](Rvq& r, std::uintptr_t z, int dtype, std::uint64_t tokens) {
            check_without_gil([&] {
              return gcomm_mapl_rvq_update(r.handle, reinterpret_cast<const void*>(z),
                                           static_cast<gcomm_dtype>(dtype), tokens);
            });
          },
          "z"_a, "dtype"_a, "tokens"_a)
      .def(
          "encode",
          [](Rvq& r, std::uintptr_t z, int dtype, std::uint64_t tokens, std::uintptr_t dst,
             std::uint64_t capacity) {
            std::uint64_t written = 0;
            check_without_gil([&] {
              return gcomm_mapl_rvq_encode(r.handle, reinterpret_cast<const void*>(z),
                                           static_cast<gcomm_dtype>(dtype), tokens,
                                           reinterpret_cast<void*>(dst), capacity, &written);
            });
            return written;
          },
          "z"_a, "dtype"_a, "tokens"_a, "dst"_a, "capacity"_a)
      .def(
          "decode",
          [](const Rvq& r, std::uintptr_t src, std::uint64_t bytes, std::uintptr_t dst, int dtype,
             std::uint64_t tokens) {
            check_without_gil([&] {
              return gcomm_mapl_rvq_decode(r.handle, reinterpret_cast<const void*>(src), bytes,
                                           reinterpret_cast<void*>(dst), static_cast<gcomm_dtype>(dtype),
                                           tokens);
            });
          },
          "src"_a, "bytes"_a, "dst"_a, "dtype"_a, "tokens"_a)
      .def(
          "read",
          [](const Rvq& r, std::uintptr_t codebooks) {
            check(gcomm_mapl_rvq_read(r.handle, reinterpret_cast<float*>(codebooks)));
          },
          "codebooks"_a)
      .def(
          "load",
          [](Rvq& r, std::uintptr_t codebooks) {
            check(gcomm_mapl_rvq_load(r.handle, reinterpret_cast<const float*>(codebooks)));
          },
          "codebooks"_a);
}

}  // namespace gcomm_python
