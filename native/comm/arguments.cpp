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

void check_shape(std::uint64_t rows, std::uint64_t cols, std::uint64_t count, const ArgName& what) {
  if (rows == 0 && cols == 0) return;
  if (rows != 0 && cols != 0 && count % cols == 0 && count / cols == rows) return;
  invalid(what.text() + ": " + std::to_string(rows) + " x " + std::to_string(cols) + " is not the shape of " +
          std::to_string(count) + " elements");
}

void check_rank(int rank, int size, const ArgName& what) {
  if (rank < 0 || rank >= size) {
    invalid(what.text() + ": " + std::to_string(rank) + " is not a rank (world size " + std::to_string(size) +
            ")");
  }
}

namespace {

// Where a learned transform can go: it needs the reduced tensor to learn from, and the spectral one all of it.
void check_transform(const collective::Call& call) {
  using collective::Verb;
  const codec::GiftSpec& gift = call.block().spec().gift;
  const bool factored = gift.geometry == codec::GiftSpec::Geometry::kFactored;
  if (call.verb == Verb::kAllReduce || (call.verb == Verb::kReduceScatter && factored)) return;
  const std::string codec = "codec " + call.codec->text() + ": ";
  if (call.verb == Verb::kReduceScatter) {
    invalid(codec +
            "spectral and elementwise gift cannot go through reduce_scatter, because what they learn needs the "
            "whole "
            "reduced matrix and no rank gets it; take all_reduce, or geometry=factored");
  }
  invalid(
      codec +
      "gift learns from reduced tensors and belongs to all_reduce and reduce_scatter; take the format without "
      "gift for verbs that only move data");
}

}  // namespace

void check_codec(const collective::Call& call) {
  if (call.codec == nullptr) return;
  const DTypeInfo& info = dtype_info(call.dtype);
  if (!info.codable) {
    invalid(std::string("dtype: ") + info.name + " cannot be encoded by codec " + call.codec->text() +
            "; codecs take float32, bfloat16 and float16");
  }
  const bool transforms = call.codec->transforms();
  if (transforms) check_transform(call);
  if (!call.codec->error_feedback() && !transforms) return;
  for (std::size_t i = 0; i < call.tensor_count; ++i) {
    if (!call.tensors[i].key.empty()) continue;
    invalid("key: codec " + call.codec->text() +
            (transforms ? " learns a transform for each tensor (gift)"
                        : " keeps a residual for each tensor (error feedback)") +
            " and needs a key to know the tensor by");
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
