// Blocking calls that Ctrl-C interrupts.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <limits>
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

// Starts a thread that nobody joins and that takes none of the program's signals (as the core's own threads,
// whose helper is not in the C ABI).
template <class Body>
void start_detached(Body body) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&blocked, own);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  struct Restore {
    const sigset_t& before;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } const restore{before};
  std::thread(std::move(body)).detach();
}

// Waits without the GIL until `done`, which is called with `mutex` held, and looks for signals meanwhile.
// False: not done after `limit_s`.
template <class Done>
bool wait_interruptibly(std::mutex& mutex, std::condition_variable& changed, double limit_s, Done done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (;;) {
    {
      nb::gil_scoped_release released;
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, kSignalPeriod, done)) return true;
    }
    check_signals();
    if (std::chrono::duration<double>(Clock::now() - start).count() >= limit_s) return false;
  }
}

// Runs a call that may block for long, in a thread of its own, while this one waits without the GIL and looks
// for signals. `call` returns a gcomm_result and owns (by value or shared) all that it touches: after Ctrl-C,
// and after `limit_s` (then the answer is false), it is left to end by itself.
template <class Call>
bool run_interruptibly(Call call, double limit_s = std::numeric_limits<double>::infinity()) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Failure failure;
  };
  auto state = std::make_shared<State>();
  start_detached([state, call = std::move(call)]() mutable {
    Failure failure = Failure::of(call());
    std::lock_guard lock(state->mutex);
    state->failure = std::move(failure);
    state->done = true;
    state->changed.notify_all();
  });
  if (!wait_interruptibly(state->mutex, state->changed, limit_s, [&] { return state->done; })) return false;
  if (state->failure.result != GCOMM_OK) raise(state->failure);
  return true;
}

}  // namespace gcomm_python
