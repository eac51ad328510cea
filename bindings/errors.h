// Result codes of the C library -> the exception classes of gcomm.errors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "gcomm/gcomm.h"

namespace gcomm_python {

namespace nb = nanobind;

// A failed call, as the thread that made it saw it: last-error text belongs to the thread.
struct Failure {
  gcomm_result result = GCOMM_OK;
  std::string text;
  std::int32_t rank = -1;

  static Failure of(gcomm_result result);
};

// Raises what gcomm.errors.from_result() makes of it. With the GIL.
[[noreturn]] void raise(const Failure& failure);

// Raises unless result is GCOMM_OK. With the GIL, in the thread that made the call.
inline void check(gcomm_result result) {
  if (result != GCOMM_OK) raise(Failure::of(result));
}

// The same of a call that is made here without the GIL.
template <class Run>
void check_without_gil(Run run) {
  Failure failure;
  {
    nb::gil_scoped_release released;
    failure = Failure::of(run());
  }
  if (failure.result != GCOMM_OK) raise(failure);
}

// A text for the C library, which would see it end at its first NUL. With the GIL.
inline const char* c_text(const std::string& text, gcomm_result otherwise, const char* what) {
  if (text.find('\0') != std::string::npos) raise({otherwise, std::string(what) + ": holds a NUL character"});
  return text.c_str();
}

}  // namespace gcomm_python
