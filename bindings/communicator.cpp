// Communicators: making, asking, ending. collectives.cpp has the calls.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "handles.h"
#include "module.h"
#include "waiting.h"

namespace gcomm_python {
namespace {

// The C++ side of a listener, which tcp() consumes.
struct Listener {
  std::shared_ptr<gcomm_tcp_listener> handle;

  explicit Listener(const std::optional<std::string>& master_host) {
    gcomm_tcp_listener* listener = nullptr;
    check(gcomm_tcp_listener_create(master_host ? master_host->c_str() : nullptr, &listener));
    handle.reset(listener, gcomm_tcp_listener_destroy);
  }
};

std::vector<Comm> make_local(std::int32_t n) {
  // A number out of range is the library's to refuse: it writes nothing then.
  std::vector<gcomm_comm*> made(static_cast<std::size_t>(std::clamp(n, 0, GCOMM_LOCAL_MOST_RANKS)), nullptr);
  check_without_gil([&] { return gcomm_comm_create_local(n, nullptr, made.data()); });
  std::vector<Comm> comms;
  comms.reserve(made.size());
  for (gcomm_comm* comm : made) comms.emplace_back(comm);
  return comms;
}

// Waits for a call that makes a communicator, at most `limit_s`; one that is abandoned destroys what it makes.
template <class Create>
Comm make_interruptibly(Create create, double limit_s = std::numeric_limits<double>::infinity()) {
  struct Made {
    std::atomic<gcomm_comm*> comm{nullptr};
    ~Made() { gcomm_comm_destroy(comm.load()); }
  };
  auto made = std::make_shared<Made>();
  const auto body = [made, create = std::move(create)]() mutable {
    gcomm_comm* comm = nullptr;
    const gcomm_result result = create(&comm);
    made->comm.store(comm);
    return result;
  };
  if (!run_interruptibly(body, limit_s)) {
    raise({GCOMM_ERR_TIMEOUT, "the connections to the other ranks did not stand in time"});
  }
  return Comm(made->comm.exchange(nullptr));
}

Comm make_tcp(const Listener& listener, std::int32_t rank, const std::vector<std::string>& addresses,
              nb::bytes token_bytes, double limit_s) {
  std::array<std::uint8_t, 16> token{};
  if (token_bytes.size() != token.size()) throw nb::value_error("token: expected 16 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(token_bytes.data()), token.size(), token.begin());
  const auto create = [handle = listener.handle, rank, addresses, token](gcomm_comm** comm) {
    std::vector<const char*> texts;
    texts.reserve(addresses.size());
    for (const std::string& address : addresses) texts.push_back(address.c_str());
    return gcomm_comm_create_tcp(handle.get(), rank, static_cast<std::int32_t>(texts.size()), texts.data(),
                                 token.data(), nullptr, comm);
  };
  return make_interruptibly(create, limit_s);
}

nb::bytes new_token() {
  std::array<std::uint8_t, 16> token{};
  check(gcomm_tcp_token(token.data()));
  return nb::bytes(token.data(), token.size());
}

void close(const Comm& comm) {
  run_interruptibly([handle = comm.handle, c = comm.get()] { return gcomm_comm_close(c); });
}

// Closes communicators side by side, in threads that Python need not know of: it starts none while it ends.
// Those that still wait for a peer after `grace_s` are aborted with the reason `why`.
void close_all(const nb::list& comms, double grace_s, const std::string& why) {
  struct Closing {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::shared_ptr<CommHandle>> open;
  };
  auto closing = std::make_shared<Closing>();
  for (const nb::handle each : comms) closing->open.push_back(nb::cast<const Comm&>(each).handle);
  for (const std::shared_ptr<CommHandle>& handle : std::vector(closing->open)) {
    start_detached([closing, handle = handle, comm = handle->get()]() mutable {
      gcomm_comm_close(comm);
      const std::lock_guard lock(closing->mutex);
      std::erase(closing->open, handle);
      closing->changed.notify_all();
    });
  }
  const auto all_closed = [&] { return closing->open.empty(); };
  if (wait_interruptibly(closing->mutex, closing->changed, grace_s, all_closed)) return;
  {
    nb::gil_scoped_release released;
    std::unique_lock lock(closing->mutex);
    const std::vector<std::shared_ptr<CommHandle>> late = closing->open;
    lock.unlock();
    for (const std::shared_ptr<CommHandle>& handle : late) gcomm_comm_abort(handle->unchecked(), why.c_str());
  }
  wait_interruptibly(closing->mutex, closing->changed, grace_s, all_closed);
}

void abort(const Comm& comm, const std::string& why) {
  gcomm_comm* handle = comm.get();
  const char* text = c_text(why, GCOMM_ERR_INVALID, "why");
  check_without_gil([&] { return gcomm_comm_abort(handle, text); });
}

nb::dict stats(const Comm& comm) {
  gcomm_comm_stats s{};
  s.struct_size = sizeof s;
  check(gcomm_comm_get_stats(comm.get(), &s));
  nb::dict d;
  d["calls"] = s.calls;
  d["raw_bytes"] = s.raw_bytes;
  d["wire_bytes"] = s.wire_bytes;
  d["encode_s"] = s.encode_s;
  d["comm_s"] = s.comm_s;
  d["decode_s"] = s.decode_s;
  d["plans"] = s.plans;
  d["workspace_bytes"] = s.workspace_bytes;
  d["raw_path_calls"] = s.raw_path_calls;
  return d;
}

Codec resident_codec(const Comm& comm, const std::string& spec) {
  gcomm_codec* codec = nullptr;
  check(gcomm_comm_codec(comm.get(), c_text(spec, GCOMM_ERR_CODEC, "codec"), &codec));
  return Codec(codec, false, comm.handle);
}

}  // namespace

void bind_communicator(nb::module_& m) {
  nb::class_<Listener>(m, "Listener", "An open TCP port, waiting for peers.")
      .def(nb::init<const std::optional<std::string>&>(), "master_host"_a.none())
      .def_prop_ro("address",
                   [](const Listener& l) { return std::string(gcomm_tcp_listener_address(l.handle.get())); });
  nb::class_<Comm>(m, "Comm", nb::is_weak_referenceable())
      .def_prop_ro("rank", [](const Comm& c) { return gcomm_comm_rank(c.get()); })
      .def_prop_ro("size", [](const Comm& c) { return gcomm_comm_size(c.get()); })
      .def_prop_ro("transport", [](const Comm& c) { return std::string(gcomm_comm_transport(c.get())); })
      .def(
          "medium",
          [](const Comm& c, std::int32_t peer) { return std::string(gcomm_comm_medium(c.get(), peer)); },
          "peer"_a)
      .def_prop_ro("slot_bytes", [](const Comm& c) { return gcomm_comm_slot_bytes(c.get()); })
      .def_prop_ro("timeout_s", [](const Comm& c) { return gcomm_comm_timeout(c.get()); })
      .def_prop_ro(
          "here", [](const Comm& c) { return c.handle->here(); }, "False in a forked child.")
      .def("close", &close)
      .def("abort", &abort, "why"_a)
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, int | float]"))
      .def("codec", &resident_codec, "spec"_a, "The codec of this text that lives in the communicator.");
  m.def("local", &make_local, "n"_a);
  m.def("token", &new_token);
  m.def("tcp", &make_tcp, "listener"_a, "rank"_a, "addresses"_a, "token"_a, "limit_s"_a,
        "Every wait for the connections to stand ends after limit_s.");
  m.def("close_all", &close_all, "comms"_a, "grace_s"_a, "why"_a,
        nb::sig("def close_all(comms: list[Comm], grace_s: float, why: str) -> None"));
  m.def(
      "mpi",
      [](nb::bytes comm) {
        const std::string handle(comm.c_str(), comm.size());
        gcomm_comm* made = nullptr;
        check_without_gil([&] { return gcomm_comm_create_mpi(handle.data(), handle.size(), nullptr, &made); });
        return Comm(made);
      },
      "comm"_a, "The bytes of an MPI_Comm.");
  m.def("env", [] {
    return make_interruptibly([](gcomm_comm** comm) { return gcomm_comm_create_env(nullptr, comm); });
  });
}

}  // namespace gcomm_python
