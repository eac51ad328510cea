// Speed of the bare transports between two ranks: ping-pong latency, one-way and two-way bandwidth.
//
//   transport_speed [shm|tcp|local] [repetitions]
//
// Over shm and tcp the ranks are two processes on loopback, with shared memory between them or without. Times
// are in microseconds: median and minimum over the repetitions, and the processor time of rank 0's process per
// repetition (local: of both ranks), which other load on the machine hardly changes.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "transport/local/local.h"
#include "transport/tcp/tcp.h"

namespace {

using gcomm::Clock;
using gcomm::Lane;
using gcomm::Ticket;
using gcomm::Transport;
using gcomm::TransportOp;
using Kind = TransportOp::Kind;

constexpr std::size_t kSlot = std::size_t{4} << 20;

enum class Pattern { kPingPong, kOneWay, kBothWays };

struct Case {
  const char* name;
  Pattern pattern;
  std::size_t bytes;  // one way
  std::size_t piece;  // longest message
};

constexpr Case kCases[] = {
    {"ping-pong", Pattern::kPingPong, 0, kSlot},
    {"ping-pong", Pattern::kPingPong, 48, kSlot},
    {"ping-pong", Pattern::kPingPong, 4096, kSlot},
    {"ping-pong", Pattern::kPingPong, 65536, kSlot},
    {"ping-pong", Pattern::kPingPong, 1 << 20, kSlot},
    {"both ways", Pattern::kBothWays, 48, kSlot},
    {"both ways", Pattern::kBothWays, 4096, kSlot},
    {"one way", Pattern::kOneWay, 16 << 20, 1 << 20},
    {"both ways", Pattern::kBothWays, 16 << 20, 256 << 10},
    {"both ways", Pattern::kBothWays, 16 << 20, 512 << 10},
    {"both ways", Pattern::kBothWays, 16 << 20, 1 << 20},
    {"both ways", Pattern::kBothWays, 16 << 20, 4 << 20},
};

double cpu_us() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

class Endpoint {
 public:
  Endpoint(Transport& transport)
      : transport_(transport), outgoing_(std::size_t{16} << 20, 1), incoming_(std::size_t{16} << 20) {}

  // Microseconds of each repetition on rank 0: a round trip for ping-pong, else the whole pattern.
  std::vector<double> run(const Case& c, int repetitions) {
    std::vector<double> times;
    for (int i = -repetitions / 10 - 1; i < repetitions; ++i) {
      const Clock::time_point start = Clock::now();
      const bool first = transport_.rank() == 0;
      switch (c.pattern) {
        case Pattern::kPingPong:
          exchange(c, first, !first);
          exchange(c, !first, first);
          break;
        case Pattern::kOneWay:
          exchange(c, first, !first);
          exchange({"", Pattern::kOneWay, 1, 1}, !first, first);
          break;
        case Pattern::kBothWays:
          exchange(c, true, true);
          break;
      }
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      if (i >= 0) times.push_back(took.count());
    }
    std::sort(times.begin(), times.end());
    return times;
  }

 private:
  void exchange(const Case& c, bool sends, bool receives) {
    const int peer = 1 - transport_.rank();
    ops_.clear();
    for (std::size_t at = 0; at == 0 || at < c.bytes; at += c.piece) {
      const std::size_t bytes = std::min(c.piece, c.bytes - at);
      if (receives) ops_.push_back({Kind::kRecv, Lane::kCollective, peer, incoming_.data() + at, bytes});
      if (sends) ops_.push_back({Kind::kSend, Lane::kCollective, peer, outgoing_.data() + at, bytes});
    }
    tickets_.resize(ops_.size());
    transport_.post(ops_.data(), ops_.size(), tickets_.data());
    transport_.wait_all(tickets_.data(), tickets_.size(), nullptr, Clock::now() + std::chrono::seconds(30));
  }

  Transport& transport_;
  std::vector<char> outgoing_;
  std::vector<char> incoming_;
  std::vector<TransportOp> ops_;
  std::vector<Ticket> tickets_;
};

void run_rank(Transport& transport, int repetitions) {
  Endpoint endpoint(transport);
  for (const Case& c : kCases) {
    const int n = std::max(5, c.bytes > 65536 ? repetitions / 20 : repetitions);
    const double cpu_before = cpu_us();
    const std::vector<double> times = endpoint.run(c, n);
    const double cpu = (cpu_us() - cpu_before) / (n + n / 10 + 1);
    if (transport.rank() != 0) continue;
    const double median = times[times.size() / 2];
    const double ways = c.pattern == Pattern::kOneWay ? 1 : 2;
    std::printf("%-6s %-10s %9zu bytes, pieces of %7zu: median %8.1f, min %8.1f, cpu %8.1f",
                transport.medium(1 - transport.rank()), c.name, c.bytes, std::min(c.bytes, c.piece), median,
                times.front(), cpu);
    if (c.bytes >= 65536) std::printf(", %.2f GB/s", ways * static_cast<double>(c.bytes) / median / 1e3);
    std::printf("\n");
    std::fflush(stdout);
  }
  transport.close();
}

void run_tcp(int repetitions, bool shared_memory) {
  int to_child[2], to_parent[2];
  if (::pipe(to_child) != 0 || ::pipe(to_parent) != 0) std::abort();
  const gcomm::TcpToken token = gcomm::random_token();
  const pid_t child = ::fork();
  const int rank = child == 0 ? 1 : 0;
  gcomm::TcpListener listener("127.0.0.1");
  char mine[64] = {}, other[64] = {};
  listener.address().copy(mine, sizeof mine - 1);
  if (::write(rank == 0 ? to_child[1] : to_parent[1], mine, sizeof mine) != sizeof mine) std::abort();
  if (::read(rank == 0 ? to_parent[0] : to_child[0], other, sizeof other) != sizeof other) std::abort();
  std::vector<std::string> addresses{mine, other};
  if (rank == 1) std::swap(addresses[0], addresses[1]);
  const auto transport = gcomm::make_tcp(listener, rank, 2, addresses, token, kSlot,
                                         Clock::now() + std::chrono::seconds(10), shared_memory);
  run_rank(*transport, repetitions);
  if (rank == 1) std::_Exit(0);
  ::waitpid(child, nullptr, 0);
}

void run_local(int repetitions) {
  auto ranks = gcomm::make_local(2, kSlot);
  std::thread other([&] { run_rank(*ranks[1], repetitions); });
  run_rank(*ranks[0], repetitions);
  other.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "shm";
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 2000;
  if ((which != "shm" && which != "tcp" && which != "local") || repetitions < 1) {
    std::fprintf(stderr, "usage: transport_speed [shm|tcp|local] [repetitions]\n");
    return 2;
  }
  which == "local" ? run_local(repetitions) : run_tcp(repetitions, which == "shm");
  return 0;
}
