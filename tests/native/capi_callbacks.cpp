// The callback transport as a host would use it: plain functions over queues in memory, one host a rank.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "check.h"
#include "gcomm/gcomm.h"

namespace {

struct Operation {
  gcomm_p2p_op op;
  bool done = false;
};

// All ranks' queues. A send copies at once; a receive is matched when it is awaited.
struct Network {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<char>>> messages;  // source, destination, lane
  bool broken = false;
};

struct Host {
  Network* network = nullptr;
  int rank = 0;
  std::uint64_t next = 1;
  std::map<std::uint64_t, Operation> operations;
  std::map<std::tuple<int, int>, std::deque<std::uint64_t>> receives;  // peer, lane: in order
  int posts = 0, waits = 0, closes = 0, longest = 0;
};

std::int32_t post(void* context, const gcomm_p2p_op* ops, std::uint64_t n, std::uint64_t* tickets) {
  Host& host = *static_cast<Host*>(context);
  const std::lock_guard lock(host.network->mutex);
  ++host.posts;
  if (host.network->broken) return GCOMM_ERR_ABORTED;
  for (std::uint64_t i = 0; i < n; ++i) {
    tickets[i] = host.next++;
    host.operations[tickets[i]] = {ops[i], ops[i].is_recv == 0};
    if (ops[i].is_recv != 0) {
      host.receives[{ops[i].peer, ops[i].lane}].push_back(tickets[i]);
    } else {
      const char* data = static_cast<const char*>(ops[i].data);
      host.network->messages[{host.rank, ops[i].peer, ops[i].lane}].emplace_back(data, data + ops[i].bytes);
      host.longest = std::max(host.longest, static_cast<int>(ops[i].bytes));
    }
  }
  host.network->changed.notify_all();
  return 0;
}

// Carries what has arrived into receives, in order.
void deliver(Host& host) {
  for (auto& [from, tickets] : host.receives) {
    auto& queue = host.network->messages[{std::get<0>(from), host.rank, std::get<1>(from)}];
    while (!tickets.empty() && !queue.empty()) {
      Operation& operation = host.operations[tickets.front()];
      std::memcpy(operation.op.data, queue.front().data(), queue.front().size());
      operation.done = true;
      tickets.pop_front();
      queue.pop_front();
    }
  }
}

std::int32_t wait_all(void* context, const std::uint64_t* tickets, std::uint64_t n, double timeout_s,
                      std::int64_t* failed) {
  Host& host = *static_cast<Host*>(context);
  std::unique_lock lock(host.network->mutex);
  ++host.waits;
  *failed = -1;
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(std::min(timeout_s, 1000.0));
  for (;;) {
    deliver(host);
    if (host.network->broken) return GCOMM_ERR_ABORTED;
    std::int64_t missing = -1;
    for (std::uint64_t i = 0; i < n && missing < 0; ++i) {
      if (!host.operations[tickets[i]].done) missing = static_cast<std::int64_t>(i);
    }
    if (missing < 0) break;
    if (host.network->changed.wait_until(lock, until) == std::cv_status::timeout) {
      *failed = missing;
      return GCOMM_ERR_TIMEOUT;
    }
  }
  for (std::uint64_t i = 0; i < n; ++i) host.operations.erase(tickets[i]);
  return 0;
}

const char* error_text(void*) { return "the network was cut"; }

void abort_all(void* context) {
  Host& host = *static_cast<Host*>(context);
  const std::lock_guard lock(host.network->mutex);
  host.network->broken = true;
  host.network->changed.notify_all();
}

void close_host(void* context) { ++static_cast<Host*>(context)->closes; }

struct Job {
  Network network;
  std::vector<Host> hosts;
  std::vector<gcomm_comm*> comms;

  explicit Job(int ranks, double timeout_s = 30) : hosts(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      Host& host = hosts[static_cast<std::size_t>(r)];
      host.network = &network;
      host.rank = r;
      gcomm_transport_callbacks callbacks{};
      callbacks.struct_size = sizeof callbacks;
      callbacks.context = &host;
      callbacks.name = "queues";
      callbacks.rank = r;
      callbacks.size = ranks;
      callbacks.overhead_bytes = 5;
      callbacks.post = post;
      callbacks.wait_all = wait_all;
      callbacks.error_text = error_text;
      callbacks.abort = abort_all;
      callbacks.close = close_host;
      gcomm_comm_config config{sizeof config, timeout_s, 0};
      comms.push_back(nullptr);
      CHECK(gcomm_comm_create_callbacks(&callbacks, &config, &comms.back()) == GCOMM_OK, "%s",
            gcomm_last_error());
      CHECK(std::string(gcomm_comm_transport(comms.back())) == "queues" &&
            gcomm_comm_slot_bytes(comms.back()) == 4 << 20);
    }
  }
  void destroy() {
    for (gcomm_comm* comm : comms) gcomm_comm_destroy(comm);
    for (const Host& host : hosts) CHECK(host.closes == 1);
  }
};

gcomm_work* reduce(gcomm_comm* comm, std::vector<float>& data, const char* spec) {
  const gcomm_tensor tensor{sizeof tensor, data.data(), data.data(), data.size(), nullptr, 0, 0};
  gcomm_codec* codec = nullptr;
  gcomm_work* work = nullptr;
  CHECK(gcomm_comm_codec(comm, spec, &codec) == GCOMM_OK);
  CHECK(gcomm_all_reduce(comm, &tensor, 1, GCOMM_F32, GCOMM_SUM, codec, nullptr, &work) == GCOMM_OK, "%s",
        gcomm_last_error());
  return work;
}

void works(int ranks, const char* spec, std::size_t count, float tolerance) {
  Job job(ranks);
  std::vector<std::vector<float>> data(static_cast<std::size_t>(ranks), std::vector<float>(count, 1.0f));
  for (int round = 0; round < 2; ++round) {
    std::vector<gcomm_work*> all;
    for (std::size_t r = 0; r < data.size(); ++r) {
      data[r].assign(count, 1.0f);
      all.push_back(reduce(job.comms[r], data[r], spec));
    }
    for (std::size_t r = 0; r < data.size(); ++r) {
      CHECK(gcomm_work_wait(all[r], -1) == GCOMM_OK, "%s", gcomm_last_error());
      gcomm_work_destroy(all[r]);
      CHECK(data[r] == data[0]);
      for (const float value : data[r]) {
        if (!(value >= static_cast<float>(ranks) - tolerance &&
              value <= static_cast<float>(ranks) + tolerance)) {
          CHECK(false, "%d ranks, %zu elements, %s: %g", ranks, count, spec, static_cast<double>(value));
          break;
        }
      }
    }
  }
  for (const Host& host : job.hosts) CHECK(host.longest <= 4 << 20 && (ranks == 1 || host.posts > 0));
  job.destroy();
}

void failures() {
  Job job(2, 0.2);
  std::vector<float> data(10, 1.0f);
  gcomm_work* work = reduce(job.comms[0], data, "int8");
  CHECK(gcomm_work_wait(work, -1) == GCOMM_ERR_TIMEOUT && gcomm_last_error_rank() == 1, "%s",
        gcomm_last_error());
  gcomm_work_destroy(work);
  gcomm_work* other = reduce(job.comms[1], data, "int8");
  CHECK(gcomm_work_wait(other, -1) == GCOMM_ERR_ABORTED, "%s", gcomm_last_error());
  CHECK(std::string(gcomm_last_error()).find("the network was cut") != std::string::npos, "%s",
        gcomm_last_error());
  gcomm_work_destroy(other);
  job.destroy();
}

// The host writes into a posted receive after its wait has failed: the memory must still be there.
struct LateHost {
  char* receive = nullptr;
  std::uint64_t bytes = 0;
};

void link_probe_keeps_its_buffers() {
  LateHost host;
  gcomm_transport_callbacks callbacks{};
  callbacks.struct_size = sizeof callbacks;
  callbacks.context = &host;
  callbacks.name = "late";
  callbacks.size = 2;
  callbacks.post = [](void* context, const gcomm_p2p_op* ops, std::uint64_t n, std::uint64_t* tickets) {
    auto& late = *static_cast<LateHost*>(context);
    for (std::uint64_t i = 0; i < n; ++i) {
      tickets[i] = i;
      if (ops[i].is_recv == 0) continue;
      late.receive = static_cast<char*>(ops[i].data);
      late.bytes = ops[i].bytes;
    }
    return std::int32_t{GCOMM_OK};
  };
  callbacks.wait_all = [](void*, const std::uint64_t*, std::uint64_t, double, std::int64_t*) {
    return std::int32_t{GCOMM_ERR_PEER_LOST};
  };
  callbacks.failed_rank = [](void*) { return std::int32_t{1}; };
  gcomm_comm* comm = nullptr;
  CHECK(gcomm_comm_create_callbacks(&callbacks, nullptr, &comm) == GCOMM_OK, "%s", gcomm_last_error());
  CHECK(gcomm_link_probe(comm, 1, 0, GCOMM_LINK_PING_PONG, 100, 1, nullptr) == GCOMM_ERR_PEER_LOST);
  CHECK(gcomm_last_error_rank() == 1, "the host named the rank, and no ticket");
  CHECK(host.receive != nullptr && host.bytes == 4 << 20);
  std::memset(host.receive, 1, host.bytes);
  gcomm_comm_destroy(comm);
}

void refused() {
  gcomm_transport_callbacks callbacks{};
  gcomm_comm* comm = nullptr;
  CHECK(gcomm_comm_create_callbacks(nullptr, nullptr, &comm) == GCOMM_ERR_INVALID);
  CHECK(gcomm_comm_create_callbacks(&callbacks, nullptr, &comm) == GCOMM_ERR_INVALID);
  callbacks.struct_size = sizeof callbacks;
  callbacks.size = 2;
  CHECK(gcomm_comm_create_callbacks(&callbacks, nullptr, &comm) == GCOMM_ERR_INVALID && comm == nullptr, "%s",
        gcomm_last_error());
  callbacks.post = post;
  callbacks.wait_all = wait_all;
  callbacks.slot_bytes = 100;
  CHECK(gcomm_comm_create_callbacks(&callbacks, nullptr, &comm) == GCOMM_ERR_INVALID &&
            std::string(gcomm_last_error()).find("callbacks.slot_bytes") != std::string::npos,
        "%s", gcomm_last_error());
}

// A host keeps what it offered where no communicator came of it, whatever is at fault.
void nothing_is_closed_that_was_not_made() {
  Host host;
  gcomm_transport_callbacks callbacks{};
  callbacks.struct_size = sizeof callbacks;
  callbacks.context = &host;
  callbacks.name = "queues";
  callbacks.size = 2;
  callbacks.post = post;
  callbacks.wait_all = wait_all;
  callbacks.close = close_host;
  gcomm_comm* comm = nullptr;
  const auto refused_for = [&](const char* what) {
    return gcomm_comm_create_callbacks(&callbacks, nullptr, &comm) == GCOMM_ERR_INVALID && comm == nullptr &&
           std::string(gcomm_last_error()).find(what) != std::string::npos;
  };
  CHECK(setenv("GCOMM_ISA", "mmx", 1) == 0);
  CHECK(refused_for("GCOMM_ISA"), "%s", gcomm_last_error());
  CHECK(unsetenv("GCOMM_ISA") == 0);
  callbacks.size = 0x7FFFFFFF;
  CHECK(refused_for("callbacks.size"), "%s", gcomm_last_error());
  CHECK(host.closes == 0);
}

}  // namespace

int main() {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{1000}, std::size_t{100003}, std::size_t{1500000}}) {
      works(ranks, "int8:min_bytes=0", count, 0.03f);
      works(ranks, "fp32:min_bytes=0", count, 0.0f);
    }
  }
  failures();
  link_probe_keeps_its_buffers();
  refused();
  nothing_is_closed_that_was_not_made();
  return check::report("capi_callbacks");
}
