#include "completions.h"

#include <atomic>
#include <memory>
#include <utility>

#include "handles.h"
#include "module.h"

namespace gcomm_python {

// Made before the work can finish, so that the core's thread allocates nothing but a slot in a vector.
struct Completions::Entry {
  Completions* home;
  PyObject* object;  // owned: the function, or what the work kept alive
  gcomm_work* work;  // owned, or null
  bool call;
};

namespace {

// Never destroyed: the core's threads may push until the process is gone.
std::atomic<Completions*> current{new Completions};

}  // namespace

Completions& Completions::instance() { return *current.load(); }

void Completions::renew_after_fork() { current.store(new Completions); }

void Completions::finished(void* context, gcomm_result) {
  Entry* entry = static_cast<Entry*>(context);
  Completions& home = *entry->home;
  std::lock_guard lock(home.mutex_);
  (entry->call ? home.functions_ : home.released_).push_back(entry);
  if (entry->call) home.changed_.notify_one();
}

void Completions::adopt(gcomm_work* work, PyObject* keep) noexcept {
  Entry* entry = new Entry{this, keep, work, false};
  // On failure `keep` lives on: the operation may still use it.
  if (gcomm_work_on_complete(work, &finished, entry) != GCOMM_OK) delete entry;
}

void Completions::release_finished() {
  std::vector<Entry*> entries;
  {
    std::lock_guard lock(mutex_);
    entries.swap(released_);
  }
  for (Entry* entry : entries) {
    gcomm_work_destroy(entry->work);
    Py_DECREF(entry->object);
    delete entry;
  }
}

void Completions::notify(gcomm_work* work, nb::callable fn) {
  auto entry = std::make_unique<Entry>(Entry{this, fn.ptr(), nullptr, true});
  check(gcomm_work_on_complete(work, &finished, entry.get()));
  fn.release();
  entry.release();
}

nb::object Completions::next() {
  Entry* entry = nullptr;
  {
    nb::gil_scoped_release released;
    std::unique_lock lock(mutex_);
    if (waiting_ < 2) {
      ++waiting_;
      changed_.wait(lock, [&] { return stopped_ || !functions_.empty(); });
      --waiting_;
    }
    if (!functions_.empty()) {
      entry = functions_.front();
      functions_.erase(functions_.begin());
    }
  }
  release_finished();
  if (entry == nullptr) return nb::none();
  nb::object fn = nb::steal(entry->object);
  delete entry;
  return fn;
}

int Completions::waiting() {
  std::lock_guard lock(mutex_);
  return waiting_;
}

void Completions::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void bind_completions(nb::module_& m) {
  m.def(
      "next_completion", [] { return Completions::instance().next(); },
      nb::sig("def next_completion() -> collections.abc.Callable[[], object] | None"));
  m.def("waiting_threads", [] { return Completions::instance().waiting(); });
  m.def("release_finished", [] { Completions::instance().release_finished(); });
  m.def("stop_completions", [] { Completions::instance().stop(); });
  m.def("after_fork_in_child", [] {
    ++fork_generation;
    Completions::renew_after_fork();
  });
}

}  // namespace gcomm_python
