// The C boundary: exceptions become result codes and a text, structs are read no further than both sides know
// them.
#pragma once

#include <algorithm>
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

// What a caller's struct has at least: its size in the first version that had it. Whoever lets a struct grow
// writes the old size down as a specialisation.
template <typename Struct>
constexpr std::size_t first_size() {
  return sizeof(Struct);
}

template <typename Struct>
std::size_t known_bytes(const Struct& value, const char* name) {
  if (value.struct_size < first_size<Struct>()) {
    throw Error(Code::kInvalid, std::string(name) + ".struct_size: " + std::to_string(value.struct_size) +
                                    ", expected sizeof(" + name + "), at least " +
                                    std::to_string(first_size<Struct>()));
  }
  return std::min(value.struct_size, sizeof(Struct));
}

// As much of a caller's struct as caller and library both know; the rest is 0.
template <typename Struct>
Struct read_struct(const Struct& from, const char* name) {
  Struct values{};
  std::memcpy(&values, &from, known_bytes(from, name));
  return values;
}

// An optional struct: its defaults, all zero, where the caller gave NULL.
template <typename Struct>
Struct read_optional(const Struct* from, const char* name) {
  return from == nullptr ? Struct{} : read_struct(*from, name);
}

// Fills as much of a caller's struct as both know, but for its struct_size.
template <typename Struct>
void write_struct(Struct* to, Struct values, const char* name) {
  const std::size_t bytes = known_bytes(required(to, name), name);
  values.struct_size = to->struct_size;
  std::memcpy(to, &values, bytes);
}

}  // namespace gcomm::capi
