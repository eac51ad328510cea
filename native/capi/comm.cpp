// Making, ending and asking about communicators.
#include <algorithm>

#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/env.h"
#include "transport/callback/callback.h"
#include "transport/local/local.h"
#include "transport/mpi/mpi.h"
#include "transport/tcp/address.h"

using gcomm::Code;
using gcomm::Error;
using gcomm::capi::guard;
using gcomm::capi::required;
using gcomm::comm::Communicator;

namespace {

// A config with everything filled in. Whatever can be wrong with it or with the environment is found before a
// peer or a host hears of the communicator.
struct Settings {
  double timeout_s;
  size_t slot_bytes;
  gcomm::codec::Isa isa;
};

Settings settings(const gcomm_comm_config* config, int32_t ranks, size_t most_slot) {
  const gcomm_comm_config given = gcomm::capi::read_optional(config, "gcomm_comm_config");
  return {given.timeout_s != 0 ? gcomm::comm::check_timeout_s(given.timeout_s, "config.timeout_s")
                               : gcomm::comm::default_timeout_s(),
          given.slot_bytes != 0 ? gcomm::comm::check_slot_bytes(given.slot_bytes, "config.slot_bytes")
                                : gcomm::comm::default_slot_bytes(ranks, most_slot),
          gcomm::comm::default_isa()};
}

gcomm_comm* make_handle(std::unique_ptr<gcomm::Transport> transport, const Settings& with) {
  auto handle = std::make_unique<gcomm_comm>();
  handle->comm = std::make_unique<Communicator>(std::move(transport), with.timeout_s, with.isa);
  return handle.release();
}

void check_local_ranks(int32_t n) {
  if (n >= 1 && n <= GCOMM_LOCAL_MOST_RANKS) return;
  throw Error(Code::kInvalid, "n: " + std::to_string(n) + " ranks cannot form a communicator, expected 1 to " +
                                  std::to_string(GCOMM_LOCAL_MOST_RANKS));
}

Communicator& open(gcomm_comm* comm) { return *required(comm, "comm").comm; }

}  // namespace

extern "C" {

gcomm_result gcomm_comm_create_local(int32_t n, const gcomm_comm_config* config, gcomm_comm** comms) {
  return guard([&] {
    required(comms, "comms");
    check_local_ranks(n);
    const Settings with = settings(config, n, gcomm::kLocalDefaultSlot);
    auto transports = gcomm::make_local(n, with.slot_bytes);
    std::vector<std::unique_ptr<gcomm_comm>> made;
    for (auto& transport : transports) made.emplace_back(make_handle(std::move(transport), with));
    for (size_t i = 0; i < made.size(); ++i) comms[i] = made[i].release();
  });
}

gcomm_result gcomm_tcp_listener_create(const char* master_host, gcomm_tcp_listener** listener) {
  return guard([&] {
    required(listener, "listener") = nullptr;
    const std::string host =
        gcomm::tcp::choose_host(gcomm::comm::socket_interface(), master_host == nullptr ? "" : master_host);
    *listener = new gcomm_tcp_listener{gcomm::TcpListener(host)};
  });
}

const char* gcomm_tcp_listener_address(const gcomm_tcp_listener* listener) {
  return listener == nullptr ? "" : listener->listener.address().c_str();
}

void gcomm_tcp_listener_destroy(gcomm_tcp_listener* listener) { delete listener; }

gcomm_result gcomm_tcp_token(uint8_t token[16]) {
  return guard([&] {
    required(token, "token");
    const gcomm::TcpToken made = gcomm::random_token();
    std::copy(made.begin(), made.end(), token);
  });
}

gcomm_result gcomm_comm_create_tcp(gcomm_tcp_listener* listener, int32_t rank, int32_t size,
                                   const char* const* addresses, const uint8_t token[16],
                                   const gcomm_comm_config* config, gcomm_comm** comm) {
  return guard([&] {
    required(comm, "comm") = nullptr;
    required(addresses, "addresses");
    required(token, "token");
    if (size < 1)
      throw Error(Code::kInvalid, "size: " + std::to_string(size) + " ranks cannot form a communicator");
    std::vector<std::string> all;
    for (int32_t i = 0; i < size; ++i) all.emplace_back(&required(addresses[i], "addresses[]"));
    gcomm::TcpToken secret;
    std::copy(token, token + secret.size(), secret.begin());
    const Settings with = settings(config, size, gcomm::kTcpDefaultSlot);
    *comm = make_handle(
        gcomm::make_tcp(required(listener, "listener").listener, rank, size, all, secret, with.slot_bytes,
                        gcomm::comm::deadline_after(with.timeout_s), gcomm::comm::tcp_shares_memory()),
        with);
  });
}

gcomm_result gcomm_comm_create_env(const gcomm_comm_config* config, gcomm_comm** comm) {
  return guard([&] {
    required(comm, "comm") = nullptr;
    const gcomm::comm::Launch launch = gcomm::comm::launch();
    const Settings with = settings(config, launch.size, gcomm::kTcpDefaultSlot);
    *comm = make_handle(
        gcomm::make_tcp_env(launch.rank, launch.size, launch.master_addr, launch.master_port,
                            gcomm::comm::socket_interface(), with.slot_bytes,
                            gcomm::comm::deadline_after(with.timeout_s), gcomm::comm::tcp_shares_memory()),
        with);
  });
}

gcomm_result gcomm_comm_create_mpi(const void* comm, size_t comm_bytes, const gcomm_comm_config* config,
                                   gcomm_comm** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    if (comm == nullptr) throw Error(Code::kInvalid, "comm: NULL");
    const Settings with = settings(config, gcomm::mpi_size(comm, comm_bytes), gcomm::kMpiDefaultSlot);
    *out = make_handle(gcomm::make_mpi(comm, comm_bytes, with.slot_bytes), with);
  });
}

gcomm_result gcomm_comm_create_callbacks(const gcomm_transport_callbacks* callbacks,
                                         const gcomm_comm_config* config, gcomm_comm** comm) {
  return guard([&] {
    required(comm, "comm") = nullptr;
    const auto given = gcomm::capi::read_struct(required(callbacks, "callbacks"), "gcomm_transport_callbacks");
    const Settings with = settings(config, given.size, gcomm::kCallbackDefaultSlot);
    gcomm::HostCallbacks host;
    static_assert(sizeof host == sizeof given);
    std::memcpy(&host, &given, sizeof host);
    const bool configured = config != nullptr && config->slot_bytes != 0;
    if (configured || host.slot_bytes == 0) {
      host.slot_bytes = with.slot_bytes;
    } else {
      gcomm::comm::check_slot_bytes(host.slot_bytes, "callbacks.slot_bytes");
    }
    *comm = make_handle(gcomm::make_callback(host), with);
  });
}

int32_t gcomm_comm_rank(const gcomm_comm* comm) { return comm == nullptr ? -1 : comm->comm->rank(); }
int32_t gcomm_comm_size(const gcomm_comm* comm) { return comm == nullptr ? 0 : comm->comm->size(); }
const char* gcomm_comm_transport(const gcomm_comm* comm) {
  return comm == nullptr ? "" : comm->comm->transport_name();
}
const char* gcomm_comm_medium(const gcomm_comm* comm, int32_t peer) {
  if (comm == nullptr || peer < 0 || peer >= comm->comm->size() || peer == comm->comm->rank()) return "";
  return comm->comm->medium(peer);
}
uint64_t gcomm_comm_slot_bytes(const gcomm_comm* comm) {
  return comm == nullptr ? 0 : comm->comm->slot_bytes();
}
double gcomm_comm_timeout(const gcomm_comm* comm) { return comm == nullptr ? 0 : comm->comm->timeout_s(); }

gcomm_result gcomm_comm_close(gcomm_comm* comm) {
  return guard([&] { open(comm).close(); });
}

gcomm_result gcomm_comm_abort(gcomm_comm* comm, const char* why) {
  return guard([&] { open(comm).abort(why == nullptr ? "" : why); });
}

void gcomm_comm_destroy(gcomm_comm* comm) {
  // A forked child has none of the threads that would have to end: what it inherited is left alone.
  if (comm == nullptr || comm->comm->forked()) return;
  delete comm;
}

gcomm_result gcomm_comm_get_stats(const gcomm_comm* comm, gcomm_comm_stats* stats) {
  return guard([&] {
    const gcomm::comm::CommStats now = required(comm, "comm").comm->stats();
    gcomm::capi::write_struct(
        stats,
        {0, now.calls, now.sums.raw_bytes, now.sums.wire_bytes, now.sums.encode_s, now.sums.comm_s,
         now.sums.decode_s, now.plans, now.workspace_bytes, now.raw_path_calls},
        "gcomm_comm_stats");
  });
}

gcomm_result gcomm_comm_codec(gcomm_comm* comm, const char* spec, gcomm_codec** codec) {
  return guard([&] {
    required(codec, "codec") = nullptr;
    const gcomm::comm::Codec& found = open(comm).codec(&required(spec, "spec"));
    const std::lock_guard lock(comm->mutex);
    *codec = &comm->codecs.try_emplace(found.get(), gcomm_codec{found, true}).first->second;
  });
}

gcomm_result gcomm_link_probe(gcomm_comm* comm, int32_t peer, int32_t initiator, gcomm_link_pattern pattern,
                              uint64_t bytes, uint32_t iterations, double* seconds) {
  return guard([&] {
    if (pattern < GCOMM_LINK_PING_PONG || pattern > GCOMM_LINK_BIDIRECTIONAL) {
      throw Error(Code::kInvalid, "pattern: " + std::to_string(pattern) + " is not a gcomm_link_pattern");
    }
    open(comm).link_probe(peer, initiator != 0, static_cast<gcomm::comm::LinkPattern>(pattern), bytes,
                          iterations, seconds);
  });
}

}  // extern "C"
