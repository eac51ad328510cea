// A transport written in Python: an object with
//
//   post(ops) -> (result, first ticket, text, rank)
//     ops: list of (is_recv, lane, peer, address, bytes). Ticket `first + i` belongs to ops[i].
//   wait_all(tickets, timeout_s) -> (result, text, rank)
//   abort()
//   close()
//
// result: a gcomm_result; text and rank (the one at fault, or -1): of a failure.
// One entry under the GIL a batch. Called from the core's threads, several at once.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "handles.h"
#include "module.h"
#include "waiting.h"

namespace gcomm_python {
namespace {

thread_local std::string last_text;
thread_local std::int32_t last_rank = -1;

// Set when the interpreter is about to end: a thread that waits for the GIL then would never return.
std::atomic<bool> ended{false};

struct Host : OfThisProcess {
  nb::object post, wait_all, abort, close;
  bool* closed_early = nullptr;  // set while the communicator is being made
};

// Runs `body` under the GIL; its Python exception becomes GCOMM_ERR_INTERNAL and a text.
template <class Body>
std::int32_t with_gil(const void* context, Body body) noexcept {
  const Host& host = *static_cast<const Host*>(context);
  last_rank = -1;
  if (!host.here() || ended.load()) {
    last_text = "the Python interpreter has ended";
    return GCOMM_ERR_CLOSED;
  }
  nb::gil_scoped_acquire acquired;
  try {
    return body(host);
  } catch (nb::python_error& error) {
    last_text = error.what();
    return GCOMM_ERR_INTERNAL;
  } catch (const std::exception& error) {
    last_text = error.what();
    return GCOMM_ERR_INTERNAL;
  }
}

std::int32_t post(void* context, const gcomm_p2p_op* ops, std::uint64_t n, std::uint64_t* tickets) {
  return with_gil(context, [&](const Host& host) {
    nb::list list;
    for (std::uint64_t i = 0; i < n; ++i) {
      list.append(nb::make_tuple(ops[i].is_recv != 0, ops[i].lane, ops[i].peer,
                                 reinterpret_cast<std::uintptr_t>(ops[i].data), ops[i].bytes));
    }
    const auto [result, first, text, rank] =
        nb::cast<std::tuple<int, std::uint64_t, std::string, std::int32_t>>(host.post(list));
    if (result != GCOMM_OK) {
      last_text = text;
      last_rank = rank;
    }
    for (std::uint64_t i = 0; i < n; ++i) tickets[i] = first + i;
    return result;
  });
}

std::int32_t wait_all(void* context, const std::uint64_t* tickets, std::uint64_t n, double timeout_s,
                      std::int64_t* failed) {
  *failed = -1;
  return with_gil(context, [&](const Host& host) {
    nb::list list;
    for (std::uint64_t i = 0; i < n; ++i) list.append(tickets[i]);
    const auto [result, text, rank] =
        nb::cast<std::tuple<int, std::string, std::int32_t>>(host.wait_all(list, timeout_s));
    if (result != GCOMM_OK) {
      last_text = text;
      last_rank = rank;
    }
    return result;
  });
}

const char* error_text(void*) { return last_text.c_str(); }

std::int32_t failed_rank(void*) { return last_rank; }

void abort(void* context) {
  with_gil(context, [](const Host& host) {
    host.abort();
    return GCOMM_OK;
  });
}

void close(void* context) {
  std::unique_ptr<Host> host(static_cast<Host*>(context));
  if (host->closed_early != nullptr) *host->closed_early = true;
  with_gil(host.get(), [&](const Host& h) {
    h.close();
    host.reset();  // drops its references, so under the GIL
    return GCOMM_OK;
  });
  host.release();  // only where Python has ended: nothing can be dropped any more
}

Comm make(nb::object transport, const std::string& name, std::int32_t rank, std::int32_t size,
          std::uint64_t overhead_bytes) {
  auto host = std::make_unique<Host>();
  host->post = transport.attr("post");
  host->wait_all = transport.attr("wait_all");
  host->abort = transport.attr("abort");
  host->close = transport.attr("close");
  gcomm_transport_callbacks callbacks{};
  callbacks.struct_size = sizeof callbacks;
  callbacks.context = host.get();
  callbacks.name = name.c_str();
  callbacks.rank = rank;
  callbacks.size = size;
  callbacks.overhead_bytes = overhead_bytes;
  callbacks.post = &post;
  callbacks.wait_all = &wait_all;
  callbacks.error_text = &error_text;
  callbacks.abort = &abort;
  callbacks.close = &close;
  callbacks.failed_rank = &failed_rank;
  gcomm_comm* comm = nullptr;
  Failure failure;
  bool closed = false;
  host->closed_early = &closed;
  {
    nb::gil_scoped_release released;
    failure = Failure::of(gcomm_comm_create_callbacks(&callbacks, nullptr, &comm));
  }
  if (closed) host.release();  // it could not be made to the end, and close() has freed the host
  if (failure.result != GCOMM_OK) raise(failure);
  host->closed_early = nullptr;
  host.release();  // close() frees it
  return Comm(comm);
}

}  // namespace

void bind_callbacks(nb::module_& m) {
  m.def("interpreter_ends", [] { ended = true; });
  m.def("callbacks", &make, "transport"_a, "name"_a, "rank"_a, "size"_a, "overhead_bytes"_a);
}

}  // namespace gcomm_python
