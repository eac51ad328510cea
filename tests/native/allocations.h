// Counts the whole process's allocations, in all threads. For one source file of an executable: it replaces
// malloc(), where operator new ends, too. Under a sanitizer malloc() is the sanitizer's and nothing is counted.
#pragma once

#include <atomic>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#else
#define COUNTS_ALLOCATIONS 1
#endif

namespace allocations {
inline std::atomic<bool> counting{false};
inline std::atomic<int> count{0};
}  // namespace allocations

#if COUNTS_ALLOCATIONS
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t n) {
  if (allocations::counting) ++allocations::count;
  return __libc_malloc(n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  if (allocations::counting) ++allocations::count;
  return __libc_memalign(alignment, n);
}
}
#endif
