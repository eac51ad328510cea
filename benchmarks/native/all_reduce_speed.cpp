// Speed of all_reduce over TCP on loopback, ranks as processes: the engine without Python.
//
//   all_reduce_speed [ranks] [bytes of fp32] [repetitions] [codec ...]
//
// In place, averaged. A line a codec, from rank 0: milliseconds (median, minimum, maximum), and per call the
// lane's time in encoding, in waiting for messages and in decoding, and the processor time of rank 0's process,
// which other load on the machine hardly changes. "none" is no codec.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/env.h"
#include "transport/tcp/tcp.h"

namespace {

using namespace gcomm;

double cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Job {
  int ranks = 2;
  std::size_t bytes = std::size_t{64} << 20;
  int repetitions = 20;
  std::vector<std::string> codecs = {"fp8_e4m3", "nvfp4", "int8", "bf16", "none"};
};

void wait(const comm::WorkRef& work) {
  work->wait_until(Deadline::max());
  if (work->code() == Code::kOk) return;
  std::fprintf(stderr, "%s\n", work->text().c_str());
  std::_Exit(1);
}

void run_rank(const Job& job, comm::Communicator& comm) {
  const std::size_t count = job.bytes / sizeof(float);
  std::vector<float> data(count);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = 1e-3f * static_cast<float>(static_cast<int>(i * 2654435761u % 4001) - 2000);
  }
  for (const std::string& name : job.codecs) {
    const comm::Codec codec = name == "none" ? nullptr : comm.codec(name);
    const comm::TensorView tensor{data.data(), data.data(), count, {}};
    std::vector<double> times;
    collective::CallStats sums;
    double cpu = 0;
    for (int i = -3; i < job.repetitions; ++i) {
      wait(comm.barrier(0));
      const double cpu_before = cpu_s();
      const auto before = Clock::now();
      const comm::WorkRef work = comm.all_reduce(&tensor, 1, DType::kF32, collective::Op::kAvg, codec, 0);
      wait(work);
      const double time = std::chrono::duration<double>(Clock::now() - before).count();
      if (i < 0) continue;
      times.push_back(1e3 * time);
      cpu += cpu_s() - cpu_before;
      sums.encode_s += work->stats().encode_s;
      sums.comm_s += work->stats().comm_s;
      sums.decode_s += work->stats().decode_s;
    }
    wait(comm.barrier(0));
    if (comm.rank() != 0) continue;
    std::sort(times.begin(), times.end());
    const double per_call = 1e3 / job.repetitions;
    std::printf("%-12s %8.3f ms (%.3f to %.3f)   encode %7.3f  wait %7.3f  decode %7.3f  processor %7.3f\n",
                name.c_str(), times[times.size() / 2], times.front(), times.back(), sums.encode_s * per_call,
                sums.comm_s * per_call, sums.decode_s * per_call, cpu * per_call);
    std::fflush(stdout);
  }
}

constexpr int kMostProcesses = 64;

// Memory that all ranks share, to find one another.
struct Board {
  TcpToken token;
  std::atomic<int> ready{0};
  char addresses[kMostProcesses][64];
};

std::unique_ptr<Transport> connect(Board& board, int rank, int ranks) {
  TcpListener listener("127.0.0.1");
  listener.address().copy(board.addresses[rank], sizeof board.addresses[rank] - 1);
  ++board.ready;
  while (board.ready < ranks) ::usleep(1000);
  const std::vector<std::string> addresses(board.addresses, board.addresses + ranks);
  return make_tcp(listener, rank, ranks, addresses, board.token,
                  comm::default_slot_bytes(ranks, kTcpDefaultSlot), Clock::now() + std::chrono::seconds(30),
                  comm::tcp_shares_memory());
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  if (argc > 1) job.ranks = std::atoi(argv[1]);
  if (argc > 2) job.bytes = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) job.repetitions = std::atoi(argv[3]);
  if (argc > 4) job.codecs.assign(argv + 4, argv + argc);
  auto* board = static_cast<Board*>(
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (board == MAP_FAILED || job.ranks < 1 || job.ranks > kMostProcesses) return 2;
  board->token = random_token();
  std::printf("%d ranks, %zu bytes\n", job.ranks, job.bytes);
  std::fflush(stdout);
  for (int r = 0; r < job.ranks; ++r) {
    if (fork() != 0) continue;
    comm::Communicator comm(connect(*board, r, job.ranks), 60, comm::default_isa());
    run_rank(job, comm);
    comm.close();
    return 0;
  }
  int failed = 0;
  for (int r = 0; r < job.ranks; ++r) {
    int status = 0;
    ::wait(&status);
    failed += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
  }
  return failed;
}
