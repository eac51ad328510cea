#include "transport/fork.h"

#include <pthread.h>

#include <atomic>

namespace gcomm {
namespace {

std::atomic<unsigned> g_generation{0};

void in_child() { g_generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

unsigned fork_generation() noexcept {
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  return g_generation.load(std::memory_order_relaxed);
}

}  // namespace gcomm
