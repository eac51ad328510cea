// The C boundary: exceptions become result codes and a text, structs are read no further than both sides know
// them.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "gcomm/gcomm.h"

namespace gcomm::capi {

// Keeps text and rank for gcomm_last_error() and gives the code back.
gcomm_result set_last_error(Code code, std::string_view text, int rank) noexcept;
// For the exception being handled.
gcomm_result set_last_error_from_exception() noexcept;

// Runs body, which returns nothing or a gcomm_result.
template <typename Body>
gcomm_result guard(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return GCOMM_OK;
    } else {
      return body();
    }
  } catch (...) {
    return set_last_error_from_exception();
  }
}

template <typename T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Code::kInvalid, std::string(name) + ": NULL");
  return *pointer;
}

inline void required_memory(const void* memory, const char* name) {
  required(static_cast<const char*>(memory), name);
}

template <typename Struct>
void check_struct_size(const Struct& value, const char* name) {
  if (value.struct_size < sizeof(Struct)) {
    throw Error(Code::kInvalid, std::string(name) + ".struct_size: " + std::to_string(value.struct_size) +
                                    ", expected sizeof(" + name + ") = " + std::to_string(sizeof(Struct)));
  }
}

// An optional struct: its defaults, all zero, where the caller gave NULL.
template <typename Struct>
Struct read_optional(const Struct* from, const char* name) {
  if (from == nullptr) return Struct{};
  check_struct_size(*from, name);
  return *from;
}

// Fills a caller's struct but for its struct_size.
template <typename Struct>
void write_struct(Struct* to, Struct values, const char* name) {
  check_struct_size(required(to, name), name);
  values.struct_size = to->struct_size;
  *to = values;
}

}  // namespace gcomm::capi
