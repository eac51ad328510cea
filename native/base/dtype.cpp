#include "base/dtype.h"

#include <string>

#include "base/error.h"

namespace gcomm {

const DTypeInfo& dtype_info(DType dtype) {
  static constexpr DTypeInfo kInfo[kDTypeCount] = {
      {"float32", 4, true},    {"bfloat16", 2, true},       {"float16", 2, true},
      {"float64", 8, false},   {"int8", 1, false},          {"uint8", 1, false},
      {"int16", 2, false},     {"uint16", 2, false},        {"int32", 4, false},
      {"uint32", 4, false},    {"int64", 8, false},         {"uint64", 8, false},
      {"bool", 1, false},      {"float8_e4m3fn", 1, false}, {"float8_e5m2", 1, false},
      {"complex64", 8, false}, {"complex128", 16, false},
  };
  const int index = static_cast<int>(dtype);
  if (index < 0 || index >= kDTypeCount) {
    throw Error(Code::kInvalid, "dtype: " + std::to_string(index) + " is not a gcomm_dtype");
  }
  return kInfo[index];
}

}  // namespace gcomm
