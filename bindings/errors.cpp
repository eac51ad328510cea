#include "errors.h"

#include <cstring>

namespace gcomm_python {

Failure Failure::of(gcomm_result result) {
  if (result == GCOMM_OK || result == GCOMM_PENDING) return {result, {}, -1};
  return {result, gcomm_last_error(), gcomm_last_error_rank()};
}

void raise(const Failure& failure) {
  const char* text = failure.text.empty() ? gcomm_result_string(failure.result) : failure.text.c_str();
  // Another rank's program, in C, may have given any bytes as its reason.
  nb::object words =
      nb::steal(PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace"));
  nb::object error = nb::module_::import_("gcomm.errors")
                         .attr("from_result")(static_cast<int>(failure.result), words, failure.rank);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

}  // namespace gcomm_python
