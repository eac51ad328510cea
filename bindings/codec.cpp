// Codecs as objects. Memory arrives as addresses that gcomm/_arrays.py has checked; the caller keeps it alive.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "handles.h"
#include "module.h"

namespace gcomm_python {
namespace {

using Position = std::tuple<std::uint32_t, std::uint64_t, std::int64_t>;

// bytes of `size`, filled by `fill` without the GIL, cut to the length that it returns.
template <class Fill>
nb::object new_bytes(std::uint64_t size, Fill fill) {
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (bytes == nullptr) throw nb::python_error();
  nb::object owner = nb::steal(bytes);
  void* data = PyBytes_AsString(bytes);
  std::uint64_t written = 0;
  check_without_gil([&] { return fill(data, &written); });
  if (written == size) return owner;
  return nb::steal(PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(written)));
}

std::uint64_t max_encoded_bytes(const Codec& codec, std::uint64_t count) {
  std::uint64_t bytes = 0;
  check(gcomm_codec_max_encoded_bytes(codec.codec, count, &bytes));
  return bytes;
}

nb::object encode(Codec& codec, std::uintptr_t pointer, int dtype, std::uint64_t count,
                  const std::optional<std::string>& key, std::optional<Position> position) {
  gcomm_encode_options options{};
  options.struct_size = sizeof options;
  options.key = key ? c_text(*key, GCOMM_ERR_INVALID, "key") : nullptr;
  options.source = -1;
  if (position) {
    options.explicit_position = 1;
    std::tie(options.call, options.element, options.source) = *position;
  }
  const std::uint64_t size = max_encoded_bytes(codec, count);
  return new_bytes(size, [&](void* data, std::uint64_t* written) {
    return gcomm_codec_encode(codec.codec, reinterpret_cast<const void*>(pointer),
                              static_cast<gcomm_dtype>(dtype), count, &options, data, size, written);
  });
}

// Into memory of the caller's; the length written.
std::uint64_t encode_into(Codec& codec, std::uintptr_t pointer, int dtype, std::uint64_t count,
                          const std::optional<std::string>& key, std::uintptr_t target,
                          std::uint64_t capacity) {
  gcomm_encode_options options{};
  options.struct_size = sizeof options;
  options.key = key ? c_text(*key, GCOMM_ERR_INVALID, "key") : nullptr;
  options.source = -1;
  std::uint64_t written = 0;
  check_without_gil([&] {
    return gcomm_codec_encode(codec.codec, reinterpret_cast<const void*>(pointer),
                              static_cast<gcomm_dtype>(dtype), count, &options, reinterpret_cast<void*>(target),
                              capacity, &written);
  });
  return written;
}

void decode(const Codec& codec, std::uintptr_t source, std::uint64_t bytes, std::uintptr_t pointer, int dtype,
            std::uint64_t count) {
  check_without_gil([&] {
    return gcomm_codec_decode(codec.codec, reinterpret_cast<const void*>(source), bytes,
                              reinterpret_cast<void*>(pointer), static_cast<gcomm_dtype>(dtype), count);
  });
}

void decode_accumulate(const Codec& codec, std::uintptr_t source, std::uint64_t bytes,
                       std::uintptr_t accumulator, std::uint64_t count) {
  check_without_gil([&] {
    return gcomm_codec_decode_accumulate(codec.codec, reinterpret_cast<const void*>(source), bytes,
                                         reinterpret_cast<float*>(accumulator), count);
  });
}

std::string report(const Codec& codec) {
  std::uint64_t size = 0;
  check(gcomm_codec_report(codec.codec, nullptr, 0, &size));
  std::string text(size, '\0');
  check(gcomm_codec_report(codec.codec, text.data(), size, &size));
  text.resize(size - 1);
  return text;
}

nb::object save_state(const Codec& codec) {
  std::uint64_t size = 0;
  check(gcomm_codec_state_save(codec.codec, nullptr, 0, &size));
  return new_bytes(size, [&](void* data, std::uint64_t* written) {
    return gcomm_codec_state_save(codec.codec, data, size, written);
  });
}

void load_state(Codec& codec, nb::bytes state) {
  check(gcomm_codec_state_load(codec.codec, state.c_str(), state.size()));
}

}  // namespace

void bind_codec(nb::module_& m) {
  nb::class_<Codec>(m, "Codec")
      .def(
          "__init__",
          [](Codec* self, const std::string& spec, const std::optional<std::string>& isa) {
            gcomm_codec* codec = nullptr;
            check(gcomm_codec_create(c_text(spec, GCOMM_ERR_CODEC, "codec"),
                                     isa ? c_text(*isa, GCOMM_ERR_INVALID, "isa") : nullptr, &codec));
            new (self) Codec(codec, true);
          },
          "spec"_a, "isa"_a.none() = nb::none())
      .def_prop_ro("spec", [](const Codec& c) { return std::string(gcomm_codec_spec(c.codec)); })
      .def_prop_ro("isa", [](const Codec& c) { return std::string(gcomm_codec_isa(c.codec)); })
      .def("max_encoded_bytes", &max_encoded_bytes, "count"_a)
      .def("encode", &encode, "pointer"_a, "dtype"_a, "count"_a, "key"_a.none(), "position"_a.none(),
           nb::sig("def encode(self, pointer: int, dtype: int, count: int, key: str | None, "
                   "position: tuple[int, int, int] | None) -> bytes"))
      .def("encode_into", &encode_into, "pointer"_a, "dtype"_a, "count"_a, "key"_a.none(), "target"_a,
           "capacity"_a)
      .def("decode", &decode, "source"_a, "nbytes"_a, "pointer"_a, "dtype"_a, "count"_a)
      .def("decode_accumulate", &decode_accumulate, "source"_a, "nbytes"_a, "accumulator"_a, "count"_a)
      .def("report", &report)
      .def("save_state", &save_state, nb::sig("def save_state(self) -> bytes"))
      .def("load_state", &load_state, "state"_a);
}

}  // namespace gcomm_python
