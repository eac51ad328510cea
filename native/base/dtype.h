// Element types at the boundary. Values equal those of gcomm_dtype in gcomm.h.
#pragma once

#include <cstddef>

namespace gcomm {

enum class DType : int {
  kF32 = 0,
  kBF16 = 1,
  kF16 = 2,  // what codecs read and write
  kF64 = 3,
  kI8 = 4,
  kU8 = 5,
  kI16 = 6,
  kU16 = 7,
  kI32 = 8,
  kU32 = 9,
  kI64 = 10,
  kU64 = 11,
  kBool = 12,
  kF8E4M3 = 13,
  kF8E5M2 = 14,
  kC64 = 15,
  kC128 = 16,
};
inline constexpr int kDTypeCount = 17;

struct DTypeInfo {
  const char* name;  // torch's spelling without the "torch." prefix
  std::size_t size;
  bool codable;  // codecs accept it
};

const DTypeInfo& dtype_info(DType dtype);  // throws Error(kInvalid) for a value outside the list

inline std::size_t dtype_size(DType dtype) { return dtype_info(dtype).size; }

}  // namespace gcomm
