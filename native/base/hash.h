// FNV-1a, 32 and 64 bits: small, in the wire format, the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gcomm {

constexpr std::uint32_t fnv1a32(std::string_view text) noexcept {
  std::uint32_t hash = 0x811C9DC5u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return hash;
}

// Numbers go in as 8 little-endian bytes, texts as their length and their bytes.
class Fnv64 {
 public:
  constexpr Fnv64& byte(std::uint8_t value) noexcept {
    hash_ = (hash_ ^ value) * 0x00000100000001B3ull;
    return *this;
  }
  constexpr Fnv64& number(std::uint64_t value) noexcept {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint8_t>(value >> shift));
    return *this;
  }
  constexpr Fnv64& text(std::string_view value) noexcept {
    number(value.size());
    for (const char c : value) byte(static_cast<std::uint8_t>(c));
    return *this;
  }
  constexpr std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325ull;
};

}  // namespace gcomm
