// Collectives as XLA custom calls on the CPU: what gcomm.jax puts into a compiled program calls the handlers
// here, in XLA's threads and without the GIL. A program names its communicator by a number, not by an address:
// it may outlive it.
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>

#include "handles.h"
#include "module.h"
#include "xla_ffi.h"

namespace gcomm_python {
namespace {

// What compiled programs may name. Numbers are never used again.
class Registry {
 public:
  std::int64_t add(const std::shared_ptr<CommHandle>& comm) {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, known] : comms_) {
      if (known.lock() == comm) return number;
    }
    comms_.emplace(++last_, comm);
    return last_;
  }
  // From now on the codec lives as long as the process: programs are never told that it goes. With the GIL.
  std::int64_t add(nb::handle object) {
    const auto* codec = &nb::cast<const Codec&>(object);
    const std::lock_guard lock(mutex_);
    for (const auto& [number, known] : codecs_) {
      if (known == codec) return number;
    }
    codecs_.emplace(++last_, codec);
    object.inc_ref();
    return last_;
  }
  std::shared_ptr<CommHandle> comm(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = comms_.find(number);
    return found == comms_.end() ? nullptr : found->second.lock();
  }
  const Codec* codec(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = codecs_.find(number);
    return found == codecs_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::weak_ptr<CommHandle>> comms_;
  std::map<std::int64_t, const Codec*> codecs_;
};

// Never destroyed: XLA's threads may call until the process is gone.
Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

// ---- what XLA hands over
// -------------------------------------------------------------------------------------

// A program that this extension's gcomm.jax has not made, or a changed interface.
[[noreturn]] void unexpected(const std::string& what) { throw std::runtime_error("gcomm.jax: " + what); }

const void* attribute(const xla::CallFrame& frame, std::string_view name, int type) {
  const xla::Attributes& all = frame.attributes;
  for (std::int64_t i = 0; i < all.size; ++i) {
    if (std::string_view(all.names[i]->data, all.names[i]->size) != name) continue;
    if (all.types[i] != type) break;
    return all.values[i];
  }
  return unexpected("the call has no attribute " + std::string(name) + " of the kind expected"), nullptr;
}

template <class T>
T number(const xla::CallFrame& frame, std::string_view name, xla::DataType dtype) {
  const auto* scalar = static_cast<const xla::Scalar*>(attribute(frame, name, xla::kScalarAttribute));
  if (scalar->dtype != dtype) unexpected("attribute " + std::string(name) + " has another type than expected");
  return *static_cast<const T*>(scalar->value);
}

std::int64_t integer(const xla::CallFrame& frame, std::string_view name) {
  return number<std::int64_t>(frame, name, xla::DataType::kS64);
}

std::string text(const xla::CallFrame& frame, std::string_view name) {
  const auto* span = static_cast<const xla::ByteSpan*>(attribute(frame, name, xla::kStringAttribute));
  return std::string(span->data, span->size);
}

struct Elements {
  void* data;
  std::uint64_t count;
  gcomm_dtype dtype;
  std::uint64_t rows, cols;  // 0, 0: no matrix
};

// The array beside the token that keeps calls in order.
Elements array(const xla::Values& values) {
  for (std::int64_t i = 0; i < values.size; ++i) {
    if (values.types[i] != xla::kBufferArgument) break;
    const auto& buffer = *static_cast<const xla::Buffer*>(values.values[i]);
    if (buffer.dtype == xla::DataType::kToken) continue;
    Elements found{buffer.data, 1, GCOMM_F32, 0, 0};
    switch (buffer.dtype) {
      case xla::DataType::kF32:
        break;
      case xla::DataType::kBF16:
        found.dtype = GCOMM_BF16;
        break;
      case xla::DataType::kF16:
        found.dtype = GCOMM_F16;
        break;
      default:
        unexpected("element type " + std::to_string(static_cast<int>(buffer.dtype)));
    }
    for (std::int64_t axis = 0; axis < buffer.rank; ++axis) {
      found.count *= static_cast<std::uint64_t>(buffer.dims[axis]);
    }
    if (buffer.rank >= 2 && found.count > 0) {
      found.rows = static_cast<std::uint64_t>(buffer.dims[0]);
      found.cols = found.count / found.rows;
    }
    return found;
  }
  unexpected("the call has no array");
}

xla::Code status_of(gcomm_result result) {
  switch (result) {
    case GCOMM_ERR_INVALID:
      return xla::Code::kInvalidArgument;
    case GCOMM_ERR_MISMATCH:
      return xla::Code::kInvalidArgument;
    case GCOMM_ERR_TIMEOUT:
      return xla::Code::kDeadlineExceeded;
    case GCOMM_ERR_PEER_LOST:
      return xla::Code::kUnavailable;
    case GCOMM_ERR_CODEC:
      return xla::Code::kDataLoss;
    case GCOMM_ERR_DESYNC:
      return xla::Code::kDataLoss;
    case GCOMM_ERR_ABORTED:
      return xla::Code::kAborted;
    case GCOMM_ERR_CLOSED:
      return xla::Code::kFailedPrecondition;
    case GCOMM_ERR_UNSUPPORTED:
      return xla::Code::kUnimplemented;
    case GCOMM_ERR_NO_MEMORY:
      return xla::Code::kResourceExhausted;
    case GCOMM_ERR_NONFINITE:
      return xla::Code::kInvalidArgument;
    default:
      return xla::Code::kInternal;
  }
}

xla::Error* error(const xla::CallFrame& frame, xla::Code code, const std::string& message) {
  xla::ErrorCreateArgs arguments{sizeof arguments, nullptr, message.c_str(), code};
  return frame.api->error_create(&arguments);
}

// ---- calls
// -----------------------------------------------------------------------------------------------------

// What every call says beside its arrays.
struct Call {
  std::shared_ptr<CommHandle> home;
  gcomm_comm* comm = nullptr;
  gcomm_codec* codec = nullptr;
  gcomm_op op;
  std::string key;
  gcomm_call_options options;
  gcomm_result result = GCOMM_OK;

  explicit Call(const xla::CallFrame& frame)
      : home(registry().comm(integer(frame, "comm"))),
        op(static_cast<gcomm_op>(integer(frame, "op"))),
        key(text(frame, "key")),
        options{sizeof options, number<double>(frame, "timeout_s", xla::DataType::kF64), 0, 0} {
    if (home == nullptr || !home->here()) return;
    comm = home->unchecked();
    const std::string spec = text(frame, "codec");
    if (const Codec* own = registry().codec(integer(frame, "own_codec")); own != nullptr) {
      codec = own->codec;
    } else if (!spec.empty()) {
      result = gcomm_comm_codec(comm, spec.c_str(), &codec);
    }
  }
  const char* c_key() const { return key.empty() ? nullptr : key.c_str(); }
};

gcomm_result all_reduce(const Call& call, const Elements& in, const Elements& out, gcomm_work** work) {
  const gcomm_tensor tensor{sizeof tensor, in.data, out.data, in.count, call.c_key(), in.rows, in.cols};
  return gcomm_all_reduce(call.comm, &tensor, 1, in.dtype, call.op, call.codec, &call.options, work);
}

gcomm_result all_gather(const Call& call, const Elements& in, const Elements& out, gcomm_work** work) {
  return gcomm_all_gather(call.comm, in.data, out.data, in.count, in.dtype, call.codec, call.c_key(),
                          &call.options, work);
}

gcomm_result reduce_scatter(const Call& call, const Elements& in, const Elements& out, gcomm_work** work) {
  gcomm_call_options options = call.options;
  options.rows = in.rows;
  options.cols = in.cols;
  return gcomm_reduce_scatter(call.comm, in.data, out.data, out.count, in.dtype, call.op, call.codec,
                              call.c_key(), &options, work);
}

using Start = gcomm_result (*)(const Call&, const Elements&, const Elements&, gcomm_work**);

template <Start start>
xla::Error* run(const xla::CallFrame& frame) {
  Call call(frame);
  if (call.comm == nullptr) {
    return error(frame, xla::Code::kFailedPrecondition,
                 "gcomm ClosedError: the communicator of this compiled call is gone");
  }
  gcomm_work* work = nullptr;
  gcomm_result result = call.result;
  if (result == GCOMM_OK) result = start(call, array(frame.arguments), array(frame.results), &work);
  if (result == GCOMM_OK) result = gcomm_work_wait(work, -1);
  xla::Error* failed = nullptr;
  if (result != GCOMM_OK) {
    failed = error(frame, status_of(result),
                   std::string("gcomm (") + gcomm_result_string(result) + "): " + gcomm_last_error());
  }
  gcomm_work_destroy(work);
  return failed;
}

// Tells XLA for which version of its interface this was made. True if that was all it wanted.
bool described(const xla::CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != xla::kMetadataExtension) return false;
  xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame.extensions)->metadata;
  // What is used here is in all minor versions, which only add to it.
  metadata.version = {sizeof metadata.version, nullptr, xla::kMajorVersion, frame.api->version.minor_version};
  metadata.traits = 0;
  if (metadata.struct_size >= sizeof metadata) metadata.state_type_id = 0;
  return true;
}

template <Start start>
xla::Error* handler(xla::CallFrame* frame) {
  if (described(*frame)) return nullptr;
  try {
    return run<start>(*frame);
  } catch (const std::exception& caught) {
    return error(*frame, xla::Code::kInternal, caught.what());
  }
}

nb::capsule capsule(xla::Error* (*function)(xla::CallFrame*)) {
  return nb::capsule(reinterpret_cast<void*>(function));
}

}  // namespace

void bind_jax(nb::module_& m) {
  m.def(
      "xla_comm", [](const Comm& comm) { return registry().add(comm.handle); }, "comm"_a,
      "The number by which compiled programs name a communicator.");
  m.def(
      "xla_codec", [](nb::handle codec) { return registry().add(codec); }, "codec"_a,
      nb::sig("def xla_codec(codec: Codec) -> int"), "The same of a codec with a state of its own.");
  m.def(
      "xla_handlers",
      [] {
        nb::dict all;
        all["gcomm_all_reduce"] = capsule(&handler<&all_reduce>);
        all["gcomm_all_gather"] = capsule(&handler<&all_gather>);
        all["gcomm_reduce_scatter"] = capsule(&handler<&reduce_scatter>);
        return all;
      },
      nb::sig("def xla_handlers() -> dict[str, object]"), "Capsules for jax.ffi.register_ffi_target.");
}

}  // namespace gcomm_python
