// Time of the calling thread alone, so that other programs on the machine disturb less.
#pragma once

#include <ctime>
#include <functional>

namespace benchmark {

inline double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

inline double seconds(const std::function<void()>& work) {
  const double start = now();
  work();
  return now() - start;
}

}  // namespace benchmark
