// What the C boundary costs: an all_reduce of four floats by one rank, called and waited for through the
// engine's own C++ interface and through gcomm.h, in turn. Calls are 50 us apart: the communicator's thread
// sleeps between them, as it does between the calls of any program that does something else, too. (Back to
// back, it may find the next call before it falls asleep, which is worth more than all that is measured here.)
//
//   call_cost [rounds] [calls a round]
//
// One JSON object: the median microseconds of a call in each round, by either way.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "capi/handles.h"
#include "comm/communicator.h"
#include "gcomm/gcomm.h"

namespace {

using namespace gcomm;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "call_cost: %s\n", text.c_str());
  std::exit(1);
}

float values[4] = {1, 2, 3, 4};

void by_engine(comm::Communicator& comm) {
  const comm::TensorView tensor{values, values, 4, {}};
  const comm::WorkRef work = comm.all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, nullptr, 0);
  if (!work->wait_until(work->patience()) || work->code() != Code::kOk) fail(work->text());
}

void by_c(gcomm_comm* comm) {
  const gcomm_tensor tensor{sizeof tensor, values, values, 4, nullptr, 0, 0};
  gcomm_work* work = nullptr;
  if (gcomm_all_reduce(comm, &tensor, 1, GCOMM_F32, GCOMM_SUM, nullptr, nullptr, &work) != GCOMM_OK ||
      gcomm_work_wait(work, -1) != GCOMM_OK) {
    fail(gcomm_last_error());
  }
  gcomm_work_destroy(work);
}

constexpr std::chrono::microseconds kApart{50};

template <typename Call>
double median_us(int calls, Call call) {
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(calls));
  for (int i = 0; i < calls; ++i) {
    const auto start = std::chrono::steady_clock::now() + kApart;
    auto before = std::chrono::steady_clock::now();
    while (before < start) before = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - before;
    times.push_back(passed.count());
  }
  const auto middle = times.begin() + calls / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

void print(const char* name, const std::vector<double>& rounds) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < rounds.size(); ++i) std::printf("%s%.3f", i == 0 ? "" : ", ", rounds[i]);
  std::printf("]");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 2000;
  if (rounds < 1 || calls < 1) fail("expected a number of rounds and of calls");
  gcomm_comm* comm = nullptr;
  if (gcomm_comm_create_local(1, nullptr, &comm) != GCOMM_OK) fail(gcomm_last_error());
  std::vector<double> engine, c;
  median_us(calls, [&] { by_c(comm); });  // warm
  for (int round = 0; round < rounds; ++round) {
    engine.push_back(median_us(calls, [&] { by_engine(*comm->comm); }));
    c.push_back(median_us(calls, [&] { by_c(comm); }));
  }
  gcomm_comm_destroy(comm);
  std::printf("{");
  print("engine_us", engine);
  std::printf(", ");
  print("c_us", c);
  std::printf("}\n");
  return 0;
}
