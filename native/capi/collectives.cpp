// The verbs, and the works that they return.
#include <cmath>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "transport/failures.h"
#include "transport/fork.h"

using gcomm::Code;
using gcomm::DType;
using gcomm::Error;
using gcomm::capi::as_handle;
using gcomm::capi::as_work;
using gcomm::capi::codec_of;
using gcomm::capi::guard;
using gcomm::capi::required;
using gcomm::comm::Communicator;
using gcomm::comm::TensorView;
using gcomm::comm::WorkRef;

namespace {

std::string_view key_of(const char* key) { return key == nullptr ? std::string_view() : std::string_view(key); }

gcomm::collective::Op op_of(gcomm_op op) {
  if (op != GCOMM_SUM && op != GCOMM_AVG) {
    throw Error(Code::kInvalid, "op: " + std::to_string(op) + " is not a gcomm_op");
  }
  return static_cast<gcomm::collective::Op>(op);
}

// Runs start(communicator, timeout_s), a WorkRef, and hands it out.
template <typename Start>
gcomm_result submit(gcomm_comm* comm, const gcomm_call_options* options, gcomm_work** work,
                    Start&& start) noexcept {
  return guard([&] {
    required(work, "work") = nullptr;
    const gcomm_call_options with = gcomm::capi::read_optional(options, "gcomm_call_options");
    *work = as_handle(start(*required(comm, "comm").comm, with.timeout_s));
  });
}

// The tensors of a call, read with the stride that the caller knows. Reused: no allocation in a steady state.
const std::vector<TensorView>& views(const gcomm_tensor* tensors, uint64_t n) {
  thread_local std::vector<TensorView> all;
  all.clear();
  if (n > 0) required(tensors, "tensors");
  const auto* at = reinterpret_cast<const char*>(tensors);
  for (uint64_t i = 0; i < n; ++i, at += tensors->struct_size) {
    const auto tensor = gcomm::capi::read_struct(*reinterpret_cast<const gcomm_tensor*>(at), "gcomm_tensor");
    if (tensor.struct_size != tensors->struct_size) {
      throw Error(Code::kInvalid,
                  "tensors[" + std::to_string(i) + "].struct_size: differs from that of tensors[0]");
    }
    all.push_back({tensor.input, tensor.output, tensor.count, key_of(tensor.key), tensor.rows, tensor.cols});
  }
  return all;
}

void call_back(const gcomm::comm::Completion& completion, Code code) {
  using Fn = void (*)(void*, gcomm_result);
  reinterpret_cast<Fn>(completion.fn)(completion.context, static_cast<gcomm_result>(code));
}

}  // namespace

extern "C" {

gcomm_result gcomm_all_reduce(gcomm_comm* comm, const gcomm_tensor* tensors, uint64_t n, gcomm_dtype dtype,
                              gcomm_op op, gcomm_codec* codec, const gcomm_call_options* options,
                              gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    const std::vector<TensorView>& all = views(tensors, n);
    return on.all_reduce(all.data(), all.size(), static_cast<DType>(dtype), op_of(op), codec_of(codec),
                         timeout_s);
  });
}

gcomm_result gcomm_reduce_scatter(gcomm_comm* comm, const void* input, void* output, uint64_t count,
                                  gcomm_dtype dtype, gcomm_op op, gcomm_codec* codec, const char* key,
                                  const gcomm_call_options* options, gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    const uint64_t rows = options == nullptr ? 0 : options->rows;
    const uint64_t cols = options == nullptr ? 0 : options->cols;
    return on.reduce_scatter({input, output, count, key_of(key), rows, cols}, static_cast<DType>(dtype),
                             op_of(op), codec_of(codec), timeout_s);
  });
}

gcomm_result gcomm_all_gather(gcomm_comm* comm, const void* input, void* output, uint64_t count,
                              gcomm_dtype dtype, gcomm_codec* codec, const char* key,
                              const gcomm_call_options* options, gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    return on.all_gather({input, output, count, key_of(key)}, static_cast<DType>(dtype), codec_of(codec),
                         timeout_s);
  });
}

gcomm_result gcomm_all_to_all(gcomm_comm* comm, const void* input, const uint64_t* send_counts, void* output,
                              const uint64_t* recv_counts, gcomm_dtype dtype, gcomm_codec* codec,
                              const char* key, const gcomm_call_options* options, gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    return on.all_to_all({input, output, 0, key_of(key)}, &required(send_counts, "send_counts"),
                         &required(recv_counts, "recv_counts"), static_cast<DType>(dtype), codec_of(codec),
                         timeout_s);
  });
}

gcomm_result gcomm_broadcast(gcomm_comm* comm, void* data, uint64_t count, gcomm_dtype dtype, int32_t root,
                             gcomm_codec* codec, const char* key, const gcomm_call_options* options,
                             gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    return on.broadcast({data, data, count, key_of(key)}, static_cast<DType>(dtype), root, codec_of(codec),
                        timeout_s);
  });
}

gcomm_result gcomm_send(gcomm_comm* comm, const void* data, uint64_t count, gcomm_dtype dtype, int32_t peer,
                        gcomm_codec* codec, const char* key, const gcomm_call_options* options,
                        gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    return on.send({data, nullptr, count, key_of(key)}, static_cast<DType>(dtype), peer, codec_of(codec),
                   timeout_s);
  });
}

gcomm_result gcomm_recv(gcomm_comm* comm, void* data, uint64_t count, gcomm_dtype dtype, int32_t peer,
                        gcomm_codec* codec, const char* key, const gcomm_call_options* options,
                        gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) {
    return on.recv({nullptr, data, count, key_of(key)}, static_cast<DType>(dtype), peer, codec_of(codec),
                   timeout_s);
  });
}

gcomm_result gcomm_barrier(gcomm_comm* comm, const gcomm_call_options* options, gcomm_work** work) {
  return submit(comm, options, work, [&](Communicator& on, double timeout_s) { return on.barrier(timeout_s); });
}

gcomm_result gcomm_work_wait(gcomm_work* work, double timeout_s) {
  return guard([&]() -> gcomm_result {
    gcomm::comm::Work& waited = *as_work(&required(work, "work"));
    if (waited.forked()) throw gcomm::used_after_fork();
    if (std::isnan(timeout_s)) throw Error(Code::kInvalid, "timeout_s: not a number");
    if (!waited.wait_until(timeout_s < 0 ? waited.patience() : gcomm::comm::deadline_after(timeout_s))) {
      return GCOMM_PENDING;
    }
    if (waited.code() == Code::kOk) return GCOMM_OK;
    return gcomm::capi::set_last_error(waited.code(), waited.text(), waited.peer());
  });
}

int32_t gcomm_work_is_completed(const gcomm_work* work) {
  return work != nullptr && as_work(work)->completed() ? 1 : 0;
}

gcomm_result gcomm_work_get_stats(const gcomm_work* work, gcomm_work_stats* stats) {
  return guard([&]() -> gcomm_result {
    const gcomm::comm::Work& done = *as_work(&required(work, "work"));
    if (!done.completed()) return GCOMM_PENDING;
    const gcomm::collective::CallStats& call = done.stats();
    gcomm::capi::write_struct(stats,
                              {0, call.raw_bytes, call.wire_bytes, call.encode_s, call.comm_s, call.decode_s,
                               done.total_s(), call.raw_path ? 1 : 0, call.nonfinite ? 1 : 0},
                              "gcomm_work_stats");
    return GCOMM_OK;
  });
}

gcomm_result gcomm_work_get_tensor_stats(const gcomm_work* work, uint64_t index, gcomm_tensor_stats* stats) {
  return guard([&]() -> gcomm_result {
    const gcomm::comm::Work& done = *as_work(&required(work, "work"));
    if (!done.completed()) return GCOMM_PENDING;
    const gcomm::collective::Call& call = done.call;
    if (call.verb != gcomm::collective::Verb::kAllReduce || done.job != nullptr) {
      throw Error(Code::kInvalid, "work: only an all_reduce has statistics of its tensors");
    }
    if (index >= call.tensor_count) {
      throw Error(Code::kInvalid, "index: expected less than " + std::to_string(call.tensor_count) + ", got " +
                                      std::to_string(index));
    }
    const gcomm::collective::TensorArg& tensor = call.tensors[index];
    gcomm::capi::write_struct(stats, {0, tensor.raw_bytes, tensor.wire_bytes, tensor.raw_path ? 1 : 0, 0},
                              "gcomm_tensor_stats");
    return GCOMM_OK;
  });
}

gcomm_result gcomm_work_on_complete(gcomm_work* work, void (*fn)(void* context, gcomm_result result),
                                    void* context) {
  return guard([&] {
    gcomm::comm::Work& target = *as_work(&required(work, "work"));
    required(fn, "fn");
    target.on_complete({&call_back, reinterpret_cast<void (*)()>(fn), context});
  });
}

void gcomm_work_destroy(gcomm_work* work) {
  if (work == nullptr || as_work(work)->forked()) return;
  WorkRef::adopt(as_work(work));
}

}  // extern "C"
