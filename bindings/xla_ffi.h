// The part of XLA's FFI binary interface (version 0.x) that bindings/jax.cpp speaks, declared here so that a
// build needs no jaxlib and one build serves every jaxlib with that interface. Names are short for XLA's own:
// CallFrame is XLA_FFI_CallFrame in xla/ffi/api/c_api.h. tests/python/test_jax_abi.py holds sizes, offsets and
// numbers against that header where jaxlib is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcomm_python::xla {

inline constexpr int kMajorVersion = 0;

struct Error;  // XLA's

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct ApiVersion {
  std::size_t struct_size;
  Extension* extensions;
  int major_version;
  int minor_version;
};

// absl's status codes.
enum class Code : int {
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  Code code;
};

struct Api {
  std::size_t struct_size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArgs* args);
  // and more, which nobody here calls
};

enum class DataType : int { kS64 = 5, kF16 = 10, kF32 = 11, kF64 = 12, kBF16 = 16, kToken = 17 };

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

struct ByteSpan {
  const char* data;
  std::size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

inline constexpr int kBufferArgument = 1;
inline constexpr int kScalarAttribute = 3;
inline constexpr int kStringAttribute = 4;

// Arguments and results alike.
struct Values {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* types;
  void** values;
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* types;
  ByteSpan** names;
  void** values;
};

inline constexpr int kExecuteStage = 3;

struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Values arguments;
  Values results;
  Attributes attributes;
  void* future;
};

struct Metadata {
  std::size_t struct_size;
  ApiVersion version;
  std::uint32_t traits;
  std::int64_t state_type_id;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace gcomm_python::xla
