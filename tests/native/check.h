// A test is an executable: CHECK prints what failed and goes on, report() is main's exit status.
#pragma once

#include <atomic>
#include <cstdio>
#include <exception>

namespace check {

inline std::atomic<int>& failures() {
  static std::atomic<int> n{0};
  return n;
}
inline std::atomic<int>& checks() {
  static std::atomic<int> n{0};
  return n;
}

inline int report(const char* name) {
  std::printf("%s: %d checks, %d failed\n", name, checks().load(), failures().load());
  return failures() == 0 && checks() > 0 ? 0 : 1;
}

}  // namespace check

// Counts from any thread; mostly threads hand their findings to the thread that checks.
#define CHECK(condition, ...)                                     \
  do {                                                            \
    ++check::checks();                                            \
    if (!(condition)) {                                           \
      if (++check::failures() <= 50) {                            \
        std::printf("%s:%d: %s", __FILE__, __LINE__, #condition); \
        __VA_OPT__(std::printf("  " __VA_ARGS__);)                \
        std::printf("\n");                                        \
      }                                                           \
    }                                                             \
  } while (0)

#define CHECK_THROWS(expression, expected_code)                                                               \
  do {                                                                                                        \
    bool thrown_ = false;                                                                                     \
    try {                                                                                                     \
      (void)(expression);                                                                                     \
    } catch (const gcomm::Error& error_) {                                                                    \
      thrown_ = true;                                                                                         \
      CHECK(error_.code() == (expected_code), "code %d: %s", static_cast<int>(error_.code()), error_.what()); \
    }                                                                                                         \
    CHECK(thrown_, "%s did not throw", #expression);                                                          \
  } while (0)
