// The C library's handles as Python objects. A forked child inherits these objects but not the threads behind
// them: there every use raises ClosedError, and nothing is freed (the library would wait for its threads for
// ever).
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "errors.h"

namespace gcomm_python {

// Grows in every forked child.
inline std::atomic<std::uint32_t> fork_generation{0};

class OfThisProcess {
 public:
  bool here() const noexcept { return generation_ == fork_generation.load(std::memory_order_relaxed); }

 private:
  std::uint32_t generation_ = fork_generation.load(std::memory_order_relaxed);
};

// Shared with calls that Ctrl-C left behind.
class CommHandle : public OfThisProcess {
 public:
  explicit CommHandle(gcomm_comm* comm) : comm_(comm) {}
  ~CommHandle() {
    if (here()) gcomm_comm_destroy(comm_);
  }
  CommHandle(const CommHandle&) = delete;
  CommHandle& operator=(const CommHandle&) = delete;

  // With the GIL.
  gcomm_comm* get() const {
    if (!here()) {
      raise({GCOMM_ERR_CLOSED, "this communicator belongs to the parent process; a forked child can't use it"});
    }
    return comm_;
  }
  // For threads without the GIL, of a handle that get() has answered for.
  gcomm_comm* unchecked() const noexcept { return comm_; }

 private:
  gcomm_comm* comm_;
};

struct Comm {
  std::shared_ptr<CommHandle> handle;

  // Destroying closes, and closing waits for peers: never with the GIL.
  ~Comm() {
    if (!handle) return;
    nb::gil_scoped_release released;
    handle.reset();
  }
  explicit Comm(gcomm_comm* comm) : handle(std::make_shared<CommHandle>(comm)) {}
  Comm(Comm&&) noexcept = default;

  gcomm_comm* get() const { return handle->get(); }
};

struct Codec : OfThisProcess {
  gcomm_codec* codec;
  bool owned;
  std::shared_ptr<CommHandle> home;  // of a codec that lives in a communicator

  Codec(gcomm_codec* c, bool own, std::shared_ptr<CommHandle> comm = nullptr)
      : codec(c), owned(own), home(std::move(comm)) {}
  ~Codec() {
    if (owned && here()) gcomm_codec_destroy(codec);
  }
  Codec(Codec&& other) noexcept
      : OfThisProcess(other),
        codec(std::exchange(other.codec, nullptr)),
        owned(std::exchange(other.owned, false)),
        home(std::move(other.home)) {}
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
};

}  // namespace gcomm_python
