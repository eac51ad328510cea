// Saved state, field by field: little-endian, as the machines that this library runs on have it.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace gcomm::gift {

template <typename T>
void put(std::vector<std::uint8_t>& out, const T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

class Fields {
 public:
  Fields(const std::uint8_t* data, std::size_t bytes) : data_(data), left_(bytes) {}

  const std::uint8_t* take(std::size_t bytes) {
    if (bytes > left_) broken();
    const std::uint8_t* at = data_;
    data_ += bytes;
    left_ -= bytes;
    return at;
  }
  template <typename T>
  void get(T* values, std::size_t count) {
    const std::uint8_t* from = take(count * sizeof(T));
    if (count > 0) std::memcpy(values, from, count * sizeof(T));
  }
  void done() const {
    if (left_ > 0) broken();
  }
  [[noreturn]] static void broken() {
    throw Error(Code::kCodec, "codec state: a key's transform cannot be read");
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace gcomm::gift
