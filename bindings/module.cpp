#include "module.h"

NB_MODULE(_native, m) {
  using namespace gcomm_python;
  m.doc() = "gcomm's C library as Python objects. Private: use the gcomm package.";
  // A program that ends with works or communicators in global variables is no mistake worth a page of text.
  nb::set_leak_warnings(false);
  bind_registry(m);
  bind_arrays(m);
  bind_codec(m);
  bind_communicator(m);
  bind_collectives(m);
  bind_work(m);
  bind_completions(m);
  bind_callbacks(m);
  bind_measure(m);
  bind_gift(m);
  bind_gnmr(m);
  bind_jax(m);
  bind_mapl(m);
}
