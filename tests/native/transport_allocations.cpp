// Once the most operations that are ever outstanding have been so once, no transport allocates.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "check.h"
#include "transport_harness.h"

namespace {
std::atomic<bool> g_count{false};
std::atomic<int> g_allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  if (g_count.load(std::memory_order_relaxed)) g_allocations.fetch_add(1);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace harness;

void exchange(Transport& transport, std::vector<unsigned char>& data, std::size_t bytes) {
  const int peer = 1 - transport.rank();
  TransportOp ops[2 * gcomm::kLaneCount];
  Ticket tickets[2 * gcomm::kLaneCount];
  std::size_t lengths[2 * gcomm::kLaneCount];
  std::size_t n = 0;
  for (int lane = 0; lane < gcomm::kLaneCount; ++lane) {
    ops[n++] = recv_op(peer, data.data() + static_cast<std::size_t>(lane) * bytes, bytes, Lane(lane));
    ops[n++] = send_op(peer, data.data() + static_cast<std::size_t>(lane + 3) * bytes, bytes, Lane(lane));
  }
  transport.post(ops, n, tickets);
  transport.wait_all(tickets, n, lengths, in_seconds(20));
}

}  // namespace

int main() {
  for (const Registration& kind : registrations()) {
    if (kind.name == std::string("callback")) continue;  // the test's host allocates
    Ranks ranks = kind.make(2, 1 << 20);
    std::vector<unsigned char> data[2] = {std::vector<unsigned char>(6 << 18),
                                          std::vector<unsigned char>(6 << 18)};
    std::atomic<int> warm{0};
    const auto thrown = in_threads(2, [&](int r) {
      Transport& transport = *ranks[static_cast<std::size_t>(r)];
      for (int i = 0; i < 400; ++i) {
        if (i == 100) {
          // Both are past their warm-up when counting begins, and neither has left when it ends.
          if (++warm == 2) g_count = true;
          while (!g_count) std::this_thread::yield();
        }
        exchange(transport, data[r], i % 8 == 0 ? std::size_t{1} << 18 : static_cast<std::size_t>(i));
        if (i == 398) g_count = false;
      }
    });
    for (const auto& error : thrown) CHECK(!error, "%s", error->what());
    CHECK(g_allocations == 0, "%s: %d allocations", kind.medium, g_allocations.load());
    g_allocations = 0;
  }
  return check::report("transport_allocations");
}
