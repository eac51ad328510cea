// Codes as bits: each in `bits` of them, lowest first, one after the other through little-endian bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcomm::mapl {

constexpr std::uint64_t packed_bytes(std::uint64_t codes, unsigned bits) noexcept {
  return (codes * bits + 7) / 8;
}

class CodeWriter {
 public:
  CodeWriter(std::uint8_t* to, unsigned bits) : to_(to), bits_(bits) {}

  void put(std::uint32_t code) {
    held_ |= code << filled_;
    for (filled_ += bits_; filled_ >= 8; filled_ -= 8) {
      *to_++ = static_cast<std::uint8_t>(held_);
      held_ >>= 8;
    }
  }
  // The last byte is filled up with zeros.
  void finish() {
    if (filled_ > 0) {
      *to_++ = static_cast<std::uint8_t>(held_);
    }
  }

 private:
  std::uint8_t* to_;
  unsigned bits_;
  std::uint32_t held_ = 0;  // at most 7 + 12 bits
  unsigned filled_ = 0;
};

// Reads no further than the byte that holds the last code asked for.
class CodeReader {
 public:
  CodeReader(const std::uint8_t* from, unsigned bits) : from_(from), bits_(bits) {}

  std::uint32_t get() {
    for (; filled_ < bits_; filled_ += 8) {
      held_ |= std::uint32_t{*from_++} << filled_;
    }
    const std::uint32_t code = held_ & ((1u << bits_) - 1);
    held_ >>= bits_;
    filled_ -= bits_;
    return code;
  }
  // What fills up the last byte; 0 in what CodeWriter wrote.
  std::uint32_t rest() const { return held_; }

 private:
  const std::uint8_t* from_;
  unsigned bits_;
  std::uint32_t held_ = 0;
  unsigned filled_ = 0;
};

}  // namespace gcomm::mapl
