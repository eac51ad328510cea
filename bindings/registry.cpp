// What is here: version, codecs, transports, instruction sets, element types.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "module.h"

namespace gcomm_python {
namespace {

// name, available, reason, bits an element, block
using Row = std::tuple<std::string, bool, std::string, double, std::size_t>;

template <gcomm_result (*kGet)(std::size_t, gcomm_registry_row*)>
std::vector<Row> rows() {
  std::vector<Row> all;
  for (std::size_t i = 0;; ++i) {
    gcomm_registry_row row{};
    row.struct_size = sizeof row;
    const gcomm_result result = kGet(i, &row);
    if (result == GCOMM_ERR_INVALID) return all;  // past the end
    check(result);
    all.emplace_back(row.name, row.available != 0, row.reason, row.bits_per_element, row.block);
  }
}

}  // namespace

void bind_registry(nb::module_& m) {
  m.def("version", [] { return std::string(gcomm_version_string()); });
  m.def("codec_rows", &rows<gcomm_codec_row>);
  m.def("transport_rows", &rows<gcomm_transport_row>);
  m.def("isa_rows", &rows<gcomm_isa_row>);
}

}  // namespace gcomm_python
