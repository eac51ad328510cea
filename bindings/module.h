// One bind_*() a subject; module.cpp calls them all.
#pragma once

#include <nanobind/nanobind.h>

#include "errors.h"

namespace gcomm_python {

using namespace nb::literals;  // NOLINT: "name"_a

void bind_registry(nb::module_& m);
void bind_arrays(nb::module_& m);
void bind_codec(nb::module_& m);
void bind_communicator(nb::module_& m);
void bind_collectives(nb::module_& m);
void bind_work(nb::module_& m);
void bind_completions(nb::module_& m);
void bind_callbacks(nb::module_& m);
void bind_measure(nb::module_& m);
void bind_gift(nb::module_& m);
void bind_gnmr(nb::module_& m);
void bind_jax(nb::module_& m);
void bind_mapl(nb::module_& m);

}  // namespace gcomm_python
