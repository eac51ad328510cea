// Blocking calls that Ctrl-C interrupts.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "errors.h"

namespace gcomm_python {

// How often a wait looks for signals.
inline constexpr std::chrono::milliseconds kSignalPeriod{50};

inline void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Runs a call that may block for long, in a thread of its own, while this one waits without the GIL and looks
// for signals. `call` returns a gcomm_result and owns (by value or shared) all that it touches: after Ctrl-C it
// is left to end by itself.
template <class Call>
void run_interruptibly(Call call) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Failure failure;
  };
  auto state = std::make_shared<State>();
  std::thread([state, call = std::move(call)]() mutable {
    Failure failure = Failure::of(call());
    std::lock_guard lock(state->mutex);
    state->failure = std::move(failure);
    state->done = true;
    state->changed.notify_all();
  }).detach();
  for (;;) {
    {
      nb::gil_scoped_release released;
      std::unique_lock lock(state->mutex);
      state->changed.wait_for(lock, kSignalPeriod, [&] { return state->done; });
      if (state->done) break;
    }
    check_signals();
  }
  if (state->failure.result != GCOMM_OK) raise(state->failure);
}

}  // namespace gcomm_python
