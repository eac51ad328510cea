// Timing the bare transport.
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "handles.h"
#include "module.h"
#include "waiting.h"

namespace gcomm_python {
namespace {

std::vector<double> link_probe(const Comm& comm, std::int32_t peer, bool initiator, int pattern,
                               std::uint64_t bytes, std::uint32_t iterations) {
  auto seconds = std::make_shared<std::vector<double>>(iterations);
  run_interruptibly([=, handle = comm.handle, c = comm.get()] {
    return gcomm_link_probe(c, peer, initiator, static_cast<gcomm_link_pattern>(pattern), bytes, iterations,
                            seconds->data());
  });
  return *seconds;
}

}  // namespace

void bind_measure(nb::module_& m) {
  m.attr("PING_PONG") = static_cast<int>(GCOMM_LINK_PING_PONG);
  m.attr("ONE_WAY") = static_cast<int>(GCOMM_LINK_ONE_WAY);
  m.attr("BIDIRECTIONAL") = static_cast<int>(GCOMM_LINK_BIDIRECTIONAL);
  m.def("link_probe", &link_probe, "comm"_a, "peer"_a, "initiator"_a, "pattern"_a, "bytes"_a, "iterations"_a,
        "Seconds of each exchange (the other side: zeros).");
}

}  // namespace gcomm_python
