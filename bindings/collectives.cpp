// The calls. Addresses, counts and element types come from gcomm/_arrays.py, which has checked them; `keep` is
// what must live until the operation completes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "completions.h"
#include "module.h"
#include "work.h"

namespace gcomm_python {
namespace {

using Key = std::optional<std::string>;

const char* text(const Key& key) { return key ? key->c_str() : nullptr; }
const void* input(std::uintptr_t pointer) { return reinterpret_cast<const void*>(pointer); }
void* output(std::uintptr_t pointer) { return reinterpret_cast<void*>(pointer); }
gcomm_codec* handle(const Codec* codec) { return codec == nullptr ? nullptr : codec->codec; }

// What every call takes beside its tensors. timeout_s 0: the communicator's.
struct Call {
  gcomm_comm* comm;
  gcomm_call_options options;
  nb::object keep;

  Call(const Comm& c, double timeout_s, nb::object k)
      : comm(c.get()), options{sizeof options, timeout_s, 0, 0}, keep(k) {}

  // Queues the operation without the GIL: `start` fills in the work.
  template <class Start>
  Work operator()(Start start) {
    Completions::instance().release_finished();
    gcomm_work* work = nullptr;
    Failure failure;
    {
      nb::gil_scoped_release released;
      failure = Failure::of(start(&work));
    }
    if (failure.result != GCOMM_OK) raise(failure);
    return Work(work, std::move(keep));
  }
};

// input, output, count, key, rows, columns (0, 0: no matrix)
using Tensor = std::tuple<std::uintptr_t, std::uintptr_t, std::uint64_t, Key, std::uint64_t, std::uint64_t>;

Work all_reduce(const Comm& comm, const std::vector<Tensor>& tensors, int dtype, int op, const Codec* codec,
                double timeout_s, nb::object keep) {
  std::vector<gcomm_tensor> list;
  list.reserve(tensors.size());
  for (const auto& [in, out, count, key, rows, cols] : tensors) {
    list.push_back({sizeof(gcomm_tensor), input(in), output(out), count, text(key), rows, cols});
  }
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) {
    return gcomm_all_reduce(call.comm, list.data(), list.size(), static_cast<gcomm_dtype>(dtype),
                            static_cast<gcomm_op>(op), handle(codec), &call.options, work);
  });
}

Work reduce_scatter(const Comm& comm, std::uintptr_t in, std::uintptr_t out, std::uint64_t count, int dtype,
                    int op, const Codec* codec, const Key& key, std::uint64_t rows, std::uint64_t cols,
                    double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  call.options.rows = rows;
  call.options.cols = cols;
  return call([&](gcomm_work** work) {
    return gcomm_reduce_scatter(call.comm, input(in), output(out), count, static_cast<gcomm_dtype>(dtype),
                                static_cast<gcomm_op>(op), handle(codec), text(key), &call.options, work);
  });
}

Work all_gather(const Comm& comm, std::uintptr_t in, std::uintptr_t out, std::uint64_t count, int dtype,
                const Codec* codec, const Key& key, double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) {
    return gcomm_all_gather(call.comm, input(in), output(out), count, static_cast<gcomm_dtype>(dtype),
                            handle(codec), text(key), &call.options, work);
  });
}

Work all_to_all(const Comm& comm, std::uintptr_t in, const std::vector<std::uint64_t>& send_counts,
                std::uintptr_t out, const std::vector<std::uint64_t>& recv_counts, int dtype,
                const Codec* codec, const Key& key, double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) {
    return gcomm_all_to_all(call.comm, input(in), send_counts.data(), output(out), recv_counts.data(),
                            static_cast<gcomm_dtype>(dtype), handle(codec), text(key), &call.options, work);
  });
}

Work broadcast(const Comm& comm, std::uintptr_t data, std::uint64_t count, int dtype, std::int32_t root,
               const Codec* codec, const Key& key, double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) {
    return gcomm_broadcast(call.comm, output(data), count, static_cast<gcomm_dtype>(dtype), root, handle(codec),
                           text(key), &call.options, work);
  });
}

Work send(const Comm& comm, std::uintptr_t data, std::uint64_t count, int dtype, std::int32_t peer,
          const Codec* codec, const Key& key, double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) {
    return gcomm_send(call.comm, input(data), count, static_cast<gcomm_dtype>(dtype), peer, handle(codec),
                      text(key), &call.options, work);
  });
}

Work recv(const Comm& comm, std::uintptr_t data, std::uint64_t count, int dtype, std::int32_t peer,
          const Codec* codec, const Key& key, double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) {
    return gcomm_recv(call.comm, output(data), count, static_cast<gcomm_dtype>(dtype), peer, handle(codec),
                      text(key), &call.options, work);
  });
}

Work barrier(const Comm& comm, double timeout_s, nb::object keep) {
  Call call(comm, timeout_s, std::move(keep));
  return call([&](gcomm_work** work) { return gcomm_barrier(call.comm, &call.options, work); });
}

}  // namespace

void bind_collectives(nb::module_& m) {
  m.def("all_reduce", &all_reduce, "comm"_a, "tensors"_a, "dtype"_a, "op"_a, "codec"_a.none(), "timeout_s"_a,
        "keep"_a);
  m.def("reduce_scatter", &reduce_scatter, "comm"_a, "input"_a, "output"_a, "count"_a, "dtype"_a, "op"_a,
        "codec"_a.none(), "key"_a.none(), "rows"_a, "cols"_a, "timeout_s"_a, "keep"_a);
  m.def("all_gather", &all_gather, "comm"_a, "input"_a, "output"_a, "count"_a, "dtype"_a, "codec"_a.none(),
        "key"_a.none(), "timeout_s"_a, "keep"_a);
  m.def("all_to_all", &all_to_all, "comm"_a, "input"_a, "send_counts"_a, "output"_a, "recv_counts"_a, "dtype"_a,
        "codec"_a.none(), "key"_a.none(), "timeout_s"_a, "keep"_a);
  m.def("broadcast", &broadcast, "comm"_a, "data"_a, "count"_a, "dtype"_a, "root"_a, "codec"_a.none(),
        "key"_a.none(), "timeout_s"_a, "keep"_a);
  m.def("send", &send, "comm"_a, "data"_a, "count"_a, "dtype"_a, "peer"_a, "codec"_a.none(), "key"_a.none(),
        "timeout_s"_a, "keep"_a);
  m.def("recv", &recv, "comm"_a, "data"_a, "count"_a, "dtype"_a, "peer"_a, "codec"_a.none(), "key"_a.none(),
        "timeout_s"_a, "keep"_a);
  m.def("barrier", &barrier, "comm"_a, "timeout_s"_a, "keep"_a);
}

}  // namespace gcomm_python
