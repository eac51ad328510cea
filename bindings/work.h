// One operation in flight, with everything that it needs alive.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "handles.h"

namespace gcomm_python {

class Work : public OfThisProcess {
 public:
  // keep: whatever must live until the operation completes (arrays, codec, communicator).
  Work(gcomm_work* work, nb::object keep) : work_(work), keep_(std::move(keep)) {}
  ~Work();
  Work(Work&& other) noexcept : work_(std::exchange(other.work_, nullptr)), keep_(std::move(other.keep_)) {}
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  gcomm_work* get() const {
    if (!here())
      raise({GCOMM_ERR_CLOSED, "this work belongs to the parent process; a forked child can't use it"});
    return work_;
  }

 private:
  gcomm_work* work_;
  nb::object keep_;
};

}  // namespace gcomm_python
