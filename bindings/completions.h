// From the core's threads, which must never wait for the GIL, to Python.
//
// The core reports a finished work by pushing onto a queue. Two kinds of entries arrive there: functions that
// somebody asked to have called (futures), which a Python thread takes out with next_completion(), and what
// works kept alive that were dropped before they completed, which whoever comes by next releases.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "errors.h"

namespace gcomm_python {

class Completions {
 public:
  static Completions& instance();
  // The child has none of the threads, and a lock may have been held: it starts afresh.
  static void renew_after_fork();

  // Takes over a work that nobody will wait for; `keep` is an owned reference. With the GIL.
  void adopt(gcomm_work* work, PyObject* keep) noexcept;
  // Releases what finished works kept alive. With the GIL.
  void release_finished();

  // With the GIL.
  void notify(gcomm_work* work, nb::callable fn);
  // Waits without the GIL for the next function; none after stop(), or where two other threads wait already.
  nb::object next();
  // Threads that wait in next().
  int waiting();
  void stop();

 private:
  struct Entry;
  static void finished(void* context, gcomm_result result);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry*> functions_;  // finished, in order
  std::vector<Entry*> released_;   // finished, nobody waits
  int waiting_ = 0;
  bool stopped_ = false;
};

}  // namespace gcomm_python
