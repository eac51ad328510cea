#include "transport_harness.h"

#include <cstdint>
#include <mutex>
#include <thread>

#include "transport/callback/callback.h"
#include "transport/local/local.h"

namespace harness {
namespace {

// What a host with its own transport would write: here that transport is gcomm's local one.
struct LocalHost {
  explicit LocalHost(std::unique_ptr<Transport> over) : transport(std::move(over)) {}
  std::unique_ptr<Transport> transport;
};

thread_local std::string t_host_error;

std::int32_t host_post(void* context, const gcomm::HostOp* ops, std::uint64_t n, std::uint64_t* tickets) {
  auto& host = *static_cast<LocalHost*>(context);
  std::vector<TransportOp> translated;
  for (std::uint64_t i = 0; i < n; ++i) {
    translated.push_back({ops[i].is_recv != 0 ? TransportOp::Kind::kRecv : TransportOp::Kind::kSend,
                          Lane(ops[i].lane), ops[i].peer, ops[i].data, ops[i].bytes});
  }
  try {
    host.transport->post(translated.data(), n, tickets);
    return 0;
  } catch (const Error& error) {
    t_host_error = error.what();
    return static_cast<std::int32_t>(error.code());
  }
}

std::int32_t host_wait_all(void* context, const std::uint64_t* tickets, std::uint64_t n, double timeout_s,
                           std::int64_t* failed) {
  auto& host = *static_cast<LocalHost*>(context);
  *failed = -1;
  try {
    host.transport->wait_all(tickets, n, nullptr, in_seconds(timeout_s));
    return 0;
  } catch (const Error& error) {
    t_host_error = error.what();
    return static_cast<std::int32_t>(error.code());
  }
}

const char* host_error_text(void*) { return t_host_error.c_str(); }

void host_abort(void* context) {
  static_cast<LocalHost*>(context)->transport->abort(Error(Code::kAborted, "the host was aborted", -1));
}

void host_close(void* context) { static_cast<LocalHost*>(context)->transport->close(); }

// Owns its host.
class HostedTransport final : public Transport {
 public:
  HostedTransport(std::unique_ptr<LocalHost> host, std::unique_ptr<Transport> over)
      : host_(std::move(host)), over_(std::move(over)) {}
  const char* name() const noexcept override { return over_->name(); }
  int rank() const noexcept override { return over_->rank(); }
  int size() const noexcept override { return over_->size(); }
  std::size_t slot_bytes() const noexcept override { return over_->slot_bytes(); }
  std::size_t overhead_bytes() const noexcept override { return over_->overhead_bytes(); }
  void post(const TransportOp* ops, std::size_t n, Ticket* tickets) override { over_->post(ops, n, tickets); }
  void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) override {
    over_->wait_all(tickets, n, received, deadline);
  }
  bool ready(const Ticket* tickets, std::size_t n) override { return over_->ready(tickets, n); }
  void abort(const Error& why) noexcept override { over_->abort(why); }
  void close() noexcept override { over_->close(); }
  bool releases_buffers_on_failure() const noexcept override { return over_->releases_buffers_on_failure(); }

 private:
  std::unique_ptr<LocalHost> host_;
  std::unique_ptr<Transport> over_;
};

}  // namespace

Ranks make_callback_ranks(int size, std::size_t slot) {
  Ranks hosts = gcomm::make_local(size, slot);
  Ranks ranks;
  for (int r = 0; r < size; ++r) {
    auto host = std::make_unique<LocalHost>(std::move(hosts[static_cast<std::size_t>(r)]));
    gcomm::HostCallbacks callbacks{};
    callbacks.struct_size = sizeof callbacks;
    callbacks.context = host.get();
    callbacks.name = "callback";
    callbacks.rank = r;
    callbacks.size = size;
    callbacks.slot_bytes = slot;
    callbacks.post = host_post;
    callbacks.wait_all = host_wait_all;
    callbacks.error_text = host_error_text;
    callbacks.abort = host_abort;
    callbacks.close = host_close;
    auto over = gcomm::make_callback(callbacks);
    ranks.push_back(std::make_unique<HostedTransport>(std::move(host), std::move(over)));
  }
  return ranks;
}

Ranks make_tcp_ranks(int size, std::size_t slot, bool shared_memory) {
  std::vector<gcomm::TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < size; ++r) {
    listeners.emplace_back("127.0.0.1");
    addresses.push_back(listeners.back().address());
  }
  const gcomm::TcpToken token = gcomm::random_token();
  Ranks ranks(static_cast<std::size_t>(size));
  const auto thrown = in_threads(size, [&](int r) {
    const auto index = static_cast<std::size_t>(r);
    ranks[index] =
        gcomm::make_tcp(listeners[index], r, size, addresses, token, slot, in_seconds(20), shared_memory);
  });
  for (const auto& error : thrown) {
    if (error) throw Error(*error);
  }
  return ranks;
}

const std::vector<Registration>& registrations() {
  static const std::vector<Registration> all = {
      {"local", "local", [](int size, std::size_t slot) { return gcomm::make_local(size, slot); }, true, true,
       true},
      {"tcp", "shm", [](int size, std::size_t slot) { return make_tcp_ranks(size, slot); }, true, true, true},
      {"tcp", "tcp", [](int size, std::size_t slot) { return make_tcp_ranks(size, slot, false); }, true, true,
       true},
      {"callback", "callback", make_callback_ranks, false, false, false},
  };
  return all;
}

Ticket post_one(Transport& transport, const TransportOp& op) {
  Ticket ticket = 0;
  transport.post(&op, 1, &ticket);
  return ticket;
}

std::size_t wait_one(Transport& transport, Ticket ticket, double seconds) {
  std::size_t length = 0;
  transport.wait_all(&ticket, 1, &length, in_seconds(seconds));
  return length;
}

std::size_t run_one(Transport& transport, const TransportOp& op, double seconds) {
  return wait_one(transport, post_one(transport, op), seconds);
}

std::optional<Error> failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

std::vector<std::optional<Error>> in_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::optional<Error>> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { thrown[static_cast<std::size_t>(r)] = failure_of([&] { body(r); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

std::vector<unsigned char> pattern(int source, int destination, int index, std::size_t bytes) {
  std::vector<unsigned char> data(bytes);
  std::uint32_t state = static_cast<std::uint32_t>(source * 7919 + destination * 104729 + index * 1299709 + 1);
  for (unsigned char& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<unsigned char>(state >> 24);
  }
  return data;
}

}  // namespace harness
