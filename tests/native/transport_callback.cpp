// A host whose answers are wrong: what the callback transport makes of them.
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "check.h"
#include "transport/callback/callback.h"
#include "transport/transports.h"
#include "transport_harness.h"

namespace {

using namespace harness;

// Answers as it is told to.
struct ScriptedHost {
  std::int32_t post_result = 0;
  std::int32_t wait_result = 0;
  std::int64_t failed = -1;
  const char* text = nullptr;
  int aborts = 0;
  int closes = 0;
  double timeout = -1;
  std::uint64_t last_capacity = 0;

  static ScriptedHost& of(void* context) { return *static_cast<ScriptedHost*>(context); }

  gcomm::HostCallbacks callbacks() {
    gcomm::HostCallbacks result{};
    result.struct_size = sizeof result;
    result.context = this;
    result.name = "scripted";
    result.rank = 1;
    result.size = 3;
    result.slot_bytes = 4096;
    result.post = [](void* context, const gcomm::HostOp* ops, std::uint64_t n, std::uint64_t* tickets) {
      for (std::uint64_t i = 0; i < n; ++i) {
        tickets[i] = 1000 + i;
        of(context).last_capacity = ops[i].bytes;
      }
      return of(context).post_result;
    };
    result.wait_all = [](void* context, const std::uint64_t*, std::uint64_t, double seconds,
                         std::int64_t* position) {
      of(context).timeout = seconds;
      *position = of(context).failed;
      return of(context).wait_result;
    };
    result.error_text = [](void* context) { return of(context).text; };
    result.abort = [](void* context) { ++of(context).aborts; };
    result.close = [](void* context) { ++of(context).closes; };
    return result;
  }
};

std::optional<Error> failed_wait(ScriptedHost& host, int second_peer = 2) {
  const auto transport = gcomm::make_callback(host.callbacks());
  char data[8];
  const TransportOp ops[2] = {recv_op(0, data, 8), recv_op(second_peer, data, 8)};
  Ticket tickets[2];
  return failure_of([&] {
    transport->post(ops, 2, tickets);
    transport->wait_all(tickets, 2, nullptr, in_seconds(5));
  });
}

void test_results() {
  for (int result = 1; result <= 12; ++result) {
    if (result == static_cast<int>(Code::kClosed)) continue;
    ScriptedHost host;
    host.wait_result = result;
    host.failed = 1;
    const auto error = failed_wait(host);
    CHECK(error && error->code() == Code(result) && error->peer() == 2, "result %d", result);
    CHECK(host.aborts == 1, "what else is pending must fail too");
    const std::string expected = "transport 'scripted', rank 1: wait_all failed with result " +
                                 std::to_string(result) + " for an operation with rank 2";
    CHECK(error->what() == expected, "%s", error->what());
    CHECK(host.closes == 1);
  }
  ScriptedHost host;
  host.wait_result = 4;
  host.failed = 0;
  host.text = "the network went away";
  const auto error = failed_wait(host);
  CHECK(error && error->code() == Code::kPeerLost && error->peer() == 0);
  CHECK(error && std::string(error->what()) == "the network went away");
  CHECK(host.timeout > 4 && host.timeout <= 5);
}

void test_garbage() {
  for (const std::int32_t result : {-1, 8, 13, 14, 99, INT32_MIN, INT32_MAX}) {
    ScriptedHost host;
    host.wait_result = result;
    const auto error = failed_wait(host);
    CHECK(error && error->code() == Code::kInternal && error->peer() == -1, "result %d", result);
    CHECK(std::string(error->what()).find("returned " + std::to_string(result)) != std::string::npos);
    ScriptedHost post_host;
    post_host.post_result = result;
    const auto post_error = failed_wait(post_host);
    CHECK(post_error && post_error->code() == Code::kInternal, "result %d", result);
  }
  for (const std::int64_t failed : {std::int64_t{2}, std::int64_t{-2}, INT64_MAX, INT64_MIN}) {
    ScriptedHost host;
    host.wait_result = 3;
    host.failed = failed;
    const auto error = failed_wait(host);
    CHECK(error && error->code() == Code::kTimeout && error->peer() == -1);
    CHECK(std::string(error->what()).find("named operation " + std::to_string(failed) + " of 2") !=
          std::string::npos);
  }
}

void test_missing_parts() {
  ScriptedHost host;
  const auto without = [&](auto change) {
    gcomm::HostCallbacks callbacks = host.callbacks();
    change(callbacks);
    gcomm::make_callback(callbacks);
  };
  CHECK_THROWS(without([](auto& c) { c.post = nullptr; }), Code::kInvalid);
  CHECK_THROWS(without([](auto& c) { c.wait_all = nullptr; }), Code::kInvalid);
  CHECK_THROWS(without([](auto& c) { c.name = nullptr; }), Code::kInvalid);
  CHECK_THROWS(without([](auto& c) { c.size = 0; }), Code::kInvalid);
  CHECK_THROWS(without([](auto& c) { c.rank = 3; }), Code::kInvalid);
  CHECK_THROWS(without([](auto& c) { c.slot_bytes = UINT64_MAX; }), Code::kInvalid);
  CHECK(host.closes == 0);

  // All that may be missing.
  gcomm::HostCallbacks bare = host.callbacks();
  bare.error_text = nullptr;
  bare.abort = nullptr;
  bare.close = nullptr;
  bare.slot_bytes = 0;
  host.wait_result = 4;
  const auto transport = gcomm::make_callback(bare);
  CHECK(transport->slot_bytes() == std::size_t{4} << 20);
  char data[8];
  CHECK_THROWS(run_one(*transport, recv_op(0, data, 8)), Code::kPeerLost);
  transport->abort(Error(Code::kAborted, "no", 0));
  CHECK_THROWS(run_one(*transport, recv_op(0, data, 8)), Code::kPeerLost);
  transport->close();
  CHECK_THROWS(run_one(*transport, recv_op(0, data, 8)), Code::kClosed);
}

// The length of what arrived is not known; the capacity is reported.
void test_lengths() {
  ScriptedHost host;
  const auto transport = gcomm::make_callback(host.callbacks());
  char data[4096];
  CHECK(run_one(*transport, recv_op(0, data, 4096)) == 4096 && host.last_capacity == 4096);
  // More than what fits on the stack.
  std::vector<TransportOp> ops(200, recv_op(2, data, 17));
  std::vector<Ticket> tickets(200);
  std::vector<std::size_t> lengths(200);
  transport->post(ops.data(), 200, tickets.data());
  transport->wait_all(tickets.data(), 200, lengths.data(), in_seconds(1));
  for (const std::size_t length : lengths) CHECK(length == 17);
}

void test_registry() {
  int available = 0;
  for (const gcomm::TransportRow& row : gcomm::transports()) {
    available += row.available;
    CHECK(row.available || row.reason[0] != '\0', "%s says no reason", row.name);
    bool tested = false;
    for (const Registration& kind : registrations()) tested = tested || std::strcmp(kind.name, row.name) == 0;
    // MPI's ranks exist only under mpiexec (capi_mpi, tests/python/test_mpi.py).
    const bool testable = row.available && std::strcmp(row.name, "mpi") != 0;
    CHECK(tested == testable, "%s", row.name);
  }
  CHECK(available > 0);
}

}  // namespace

int main() {
  test_results();
  test_garbage();
  test_missing_parts();
  test_lengths();
  test_registry();
  return check::report("transport_callback");
}
