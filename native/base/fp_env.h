// The floating-point environment that the wire format asks for: nearest even, denormals kept, nothing trapped.
// A host program may have turned on flush-to-zero or another rounding; its setting comes back at the end of the
// scope.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace gcomm {

class FpEnvironment {
 public:
  FpEnvironment() noexcept : saved_(get()) {
    if (saved_ != kWanted) {
      set(kWanted);
    }
  }
  ~FpEnvironment() {
    if (saved_ != kWanted) {
      set(saved_);
    }
  }
  FpEnvironment(const FpEnvironment&) = delete;
  FpEnvironment& operator=(const FpEnvironment&) = delete;

 private:
#if defined(__x86_64__) || defined(_M_X64)
  using Word = unsigned int;
  static constexpr Word kWanted = 0x1F80;  // all exceptions masked, nearest, no FTZ, no DAZ
  static constexpr Word kSticky = 0x3F;    // what happened so far; not a setting
  static Word get() noexcept { return _mm_getcsr() & ~kSticky; }
  static void set(Word word) noexcept { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kWanted = 0;
  static Word get() noexcept {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) noexcept { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
#error "gcomm: say here how this processor's rounding and denormal modes are set"
#endif

  Word saved_;
};

}  // namespace gcomm
