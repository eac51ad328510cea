// Memory for workspaces: aligned to pages, never copied, not initialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __lsan_ignore_object(const void*);
#endif

namespace gcomm {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 4096;

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) data_ = static_cast<std::uint8_t*>(::operator new(bytes, std::align_val_t{kAlignment}));
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer() { ::operator delete(data_, std::align_val_t{kAlignment}); }

  std::uint8_t* data() noexcept { return data_; }
  const std::uint8_t* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

  // Gives the memory up without freeing it.
  void leak() noexcept {
#if defined(__SANITIZE_ADDRESS__)
    __lsan_ignore_object(data_);
#endif
    data_ = nullptr;
    bytes_ = 0;
  }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace gcomm
