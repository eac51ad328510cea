// The peak of the processor's fused multiply-adds: 256-bit ones, in one thread.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace benchmark {

inline constexpr int kPeakRounds = 2000000;

#if defined(__x86_64__)
inline constexpr double kPeakFlops = 2.0 * 8 * 12 * kPeakRounds;
// Twelve chains in registers: more than latency times throughput of any processor that has the instruction.
__attribute__((target("avx2,fma"))) inline void peak_work() {
  __m256 sum[12];
  for (int i = 0; i < 12; ++i) {
    sum[i] = _mm256_set1_ps(static_cast<float>(i));
  }
  const __m256 a = _mm256_set1_ps(0.999f);
  const __m256 b = _mm256_set1_ps(0.001f);
  for (int round = 0; round < kPeakRounds; ++round) {
    for (int i = 0; i < 12; ++i) {
      sum[i] = _mm256_fmadd_ps(sum[i], a, b);
    }
    // Keeps the loop as it is written.
    __asm__ volatile("" : "+x"(sum[0]), "+x"(sum[1]), "+x"(sum[2]), "+x"(sum[3]), "+x"(sum[4]), "+x"(sum[5]));
    __asm__ volatile("" : "+x"(sum[6]), "+x"(sum[7]), "+x"(sum[8]), "+x"(sum[9]), "+x"(sum[10]), "+x"(sum[11]));
  }
}
inline bool has_peak() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#else
inline constexpr double kPeakFlops = 0.0;
inline void peak_work() {}
inline bool has_peak() { return false; }
#endif

}  // namespace benchmark
