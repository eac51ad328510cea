// Checks of what a caller passes, before anything is queued. All throw Error(kInvalid) that names the argument.
#pragma once

#include "collective/call.h"

namespace gcomm::comm {

// An argument's name, put together only for an error: "tensors[2].input", "send_counts[1]", "root".
struct ArgName {
  const char* before;
  std::int64_t index = -1;  // -1: no brackets
  const char* after = "";

  std::string text() const {
    return index < 0 ? std::string(before) + after : before + ("[" + std::to_string(index) + "]") + after;
  }
};

// Memory for count elements, times `copies`.
void check_memory(const void* data, std::uint64_t count, std::uint64_t copies, DType dtype,
                  const ArgName& what);

// The same range, or none of it.
void check_overlap(const void* input, std::uint64_t input_count, const void* output, std::uint64_t output_count,
                   DType dtype, const ArgName& what);

// rows x cols == count, or both 0.
void check_shape(std::uint64_t rows, std::uint64_t cols, std::uint64_t count, const ArgName& what);

void check_rank(int rank, int size, const ArgName& what);

// A codec can take the dtype, and has the keys that it needs.
void check_codec(const collective::Call& call);

// Nobody reduces what codecs do not take.
void check_reducible(DType dtype);

}  // namespace gcomm::comm
