// n values for the length of a call: on the stack, or on the heap where a call is unusually long.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace gcomm {

template <typename T>
class Scratch {
 public:
  explicit Scratch(std::size_t n) : size_(n) {
    if (n > few_.size()) many_.resize(n);
    data_ = n > few_.size() ? many_.data() : few_.data();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  T* data() noexcept { return data_; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }

 private:
  std::size_t size_;
  T* data_;
  std::array<T, 64> few_;
  std::vector<T> many_;
};

}  // namespace gcomm
