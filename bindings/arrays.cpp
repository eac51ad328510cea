// What an object that speaks DLPack (or the buffer protocol) holds, without a copy. torch and numpy are read in
// Python (gcomm/_arrays.py), which is cheaper than their DLPack export and knows more element types.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "module.h"

namespace gcomm_python {
namespace {

using AnyArray = nb::ndarray<>;
using ReadOnlyArray = nb::ndarray<nb::ro>;

struct Array {
  ReadOnlyArray array;
  bool writable = false;

  std::vector<std::int64_t> shape() const {
    return std::vector<std::int64_t>(array.shape_ptr(), array.shape_ptr() + array.ndim());
  }
  std::vector<std::int64_t> strides() const {
    return std::vector<std::int64_t>(array.stride_ptr(), array.stride_ptr() + array.ndim());
  }
};

// None where the object offers no array.
std::optional<Array> describe(nb::handle object) {
  // The writable cast refuses what its producer marks read-only; the other one takes all.
  AnyArray writable;
  if (nb::try_cast<AnyArray>(object, writable, false)) return Array{ReadOnlyArray(writable), true};
  ReadOnlyArray readable;
  if (nb::try_cast<ReadOnlyArray>(object, readable, false)) return Array{readable, false};
  return std::nullopt;
}

// Where an array's memory is, by the buffer protocol; numpy's own ways to ask cost five times as much. Element
// types that the protocol has no name for are no hindrance, as none is asked for.
std::uintptr_t address(nb::handle array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES) != 0) throw nb::python_error();
  const auto pointer = reinterpret_cast<std::uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return pointer;
}

}  // namespace

void bind_arrays(nb::module_& m) {
  nb::class_<Array>(m, "Array", "An array seen through DLPack. It keeps the memory alive.")
      .def_prop_ro("pointer", [](const Array& a) { return reinterpret_cast<std::uintptr_t>(a.array.data()); })
      .def_prop_ro(
          "count", [](const Array& a) { return a.array.size(); }, "Elements.")
      .def_prop_ro(
          "itemsize", [](const Array& a) { return a.array.itemsize(); }, "Bytes an element.")
      .def_prop_ro("shape", &Array::shape)
      .def_prop_ro("strides", &Array::strides, "In elements.")
      .def_prop_ro(
          "type_code", [](const Array& a) { return a.array.dtype().code; }, "DLPack's type code.")
      .def_prop_ro(
          "bits", [](const Array& a) { return a.array.dtype().bits * a.array.dtype().lanes; },
          "Bits an element.")
      .def_prop_ro(
          "device_type", [](const Array& a) { return a.array.device_type(); }, "DLPack's; 1 is the CPU.")
      .def_ro("writable", &Array::writable);
  m.def("describe", &describe, "array"_a.none());
  m.def("address", &address, "array"_a, nb::sig("def address(array: object) -> int"));
}

}  // namespace gcomm_python
