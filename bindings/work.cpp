#include "work.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "completions.h"
#include "module.h"
#include "waiting.h"

namespace gcomm_python {

Work::~Work() {
  if (work_ == nullptr) return;
  if (!here()) {
    keep_.release();  // the parent's operation, in the parent's memory
    return;
  }
  if (gcomm_work_is_completed(work_)) {
    gcomm_work_destroy(work_);
  } else {
    Completions::instance().adopt(work_, keep_.release().ptr());
  }
}

namespace {

// Waits in slices, so that Ctrl-C is seen at once. False: not complete after `timeout_s`; none: until the
// operation's own deadline.
bool wait(const Work& work, std::optional<double> timeout_s) {
  using Clock = std::chrono::steady_clock;
  gcomm_work* handle = work.get();
  Failure failure = Failure::of(gcomm_work_wait(handle, 0.0));
  const Clock::time_point start = Clock::now();
  while (failure.result == GCOMM_PENDING) {
    double slice = std::chrono::duration<double>(kSignalPeriod).count();
    if (timeout_s) {
      const double left = *timeout_s - std::chrono::duration<double>(Clock::now() - start).count();
      if (left <= 0) return false;
      slice = std::min(slice, left);
    }
    {
      nb::gil_scoped_release released;
      failure = Failure::of(gcomm_work_wait(handle, slice));
    }
    check_signals();
  }
  if (failure.result != GCOMM_OK) raise(failure);
  return true;
}

nb::dict stats(const Work& work) {
  gcomm_work_stats s{};
  s.struct_size = sizeof s;
  check(gcomm_work_get_stats(work.get(), &s));
  nb::dict d;
  d["raw_bytes"] = s.raw_bytes;
  d["wire_bytes"] = s.wire_bytes;
  d["encode_s"] = s.encode_s;
  d["comm_s"] = s.comm_s;
  d["decode_s"] = s.decode_s;
  d["total_s"] = s.total_s;
  d["path"] = s.raw_path ? "raw" : "direct";
  d["nonfinite"] = s.nonfinite != 0;
  return d;
}

// (raw bytes, wire bytes, whether it went raw) of each tensor of an all_reduce.
nb::list tensor_stats(const Work& work, std::uint64_t tensors) {
  nb::list all;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    gcomm_tensor_stats s{};
    s.struct_size = sizeof s;
    check(gcomm_work_get_tensor_stats(work.get(), i, &s));
    all.append(nb::make_tuple(s.raw_bytes, s.wire_bytes, s.raw_path != 0));
  }
  return all;
}

}  // namespace

void bind_work(nb::module_& m) {
  nb::class_<Work>(m, "Work")
      .def("wait", &wait, "timeout_s"_a.none())
      .def("is_completed", [](const Work& w) { return gcomm_work_is_completed(w.get()) != 0; })
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int | float | str | bool]"))
      .def("tensor_stats", &tensor_stats, "tensors"_a,
           nb::sig("def tensor_stats(self, tensors: int) -> list[tuple[int, int, bool]]"))
      .def(
          "on_complete",
          [](const Work& w, nb::callable fn) { Completions::instance().notify(w.get(), std::move(fn)); },
          "fn"_a, nb::sig("def on_complete(self, fn: collections.abc.Callable[[], object]) -> None"),
          "Has fn() called by a thread that runs next_completion(), once the work is complete.");
}

}  // namespace gcomm_python
