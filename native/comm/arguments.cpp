#include "comm/arguments.h"

#include <functional>
#include <string>

namespace gcomm::comm {
namespace {

// Beyond any address space, and sums of sizes stay below 2^64.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

[[noreturn]] void invalid(const std::string& text) { throw Error(Code::kInvalid, text); }

}  // namespace

void check_memory(const void* data, std::uint64_t count, std::uint64_t copies, DType dtype,
                  const ArgName& what) {
  const std::uint64_t item = dtype_size(dtype);
  if (count > kMostBytes / item / copies) {
    invalid(what.text() + ": " + std::to_string(count) + " elements are more than memory can hold");
  }
  if (count > 0 && data == nullptr)
    invalid(what.text() + ": NULL, expected " + std::to_string(count) + " elements");
  if (reinterpret_cast<std::uintptr_t>(data) % (item > 8 ? 8 : item) != 0) {
    invalid(what.text() + ": not aligned to its elements of " + std::to_string(item) + " bytes");
  }
}

void check_overlap(const void* input, std::uint64_t input_count, const void* output, std::uint64_t output_count,
                   DType dtype, const ArgName& what) {
  if (input == output || input_count == 0 || output_count == 0) return;
  const std::uint64_t item = dtype_size(dtype);
  const auto* in = static_cast<const std::uint8_t*>(input);
  const auto* out = static_cast<const std::uint8_t*>(output);
  const std::less<> before;
  if (before(in, out + output_count * item) && before(out, in + input_count * item)) {
    invalid(what.text() + ": input and output overlap without being the same");
  }
}

void check_rank(int rank, int size, const ArgName& what) {
  if (rank < 0 || rank >= size) {
    invalid(what.text() + ": " + std::to_string(rank) + " is not a rank (world size " + std::to_string(size) +
            ")");
  }
}

void check_codec(const collective::Call& call) {
  if (call.codec == nullptr) return;
  const DTypeInfo& info = dtype_info(call.dtype);
  if (!info.codable) {
    invalid(std::string("dtype: ") + info.name + " cannot be encoded by codec " + call.codec->text() +
            "; codecs take float32, bfloat16 and float16");
  }
  if (!call.codec->error_feedback()) return;
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    if (!call.tensors[i].key.empty()) continue;
    invalid("key: codec " + call.codec->text() +
            " keeps a residual for each tensor (error feedback) and needs a key to know the tensor by");
  }
}

void check_reducible(DType dtype) {
  const DTypeInfo& info = dtype_info(dtype);
  if (!info.codable) {
    invalid(std::string("dtype: ") + info.name +
            " cannot be summed; all_reduce and reduce_scatter take float32, bfloat16 and float16");
  }
}

}  // namespace gcomm::comm
