#include "transport/tcp/tcp.h"

#include <netinet/in.h>
#include <sys/random.h>

#include <cerrno>

#include "transport/failures.h"
#include "transport/fork.h"
#include "transport/tcp/communicator.h"
#include "transport/tcp/local_connection.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/rendezvous.h"

namespace gcomm {
namespace {

class TcpTransport final : public Transport {
 public:
  TcpTransport(int rank, int size, std::size_t slot, tcp::Mesh mesh)
      : generation_(fork_generation()),
        communicator_(std::make_unique<tcp::Communicator>(rank, size, slot, std::move(mesh))) {}

  ~TcpTransport() override {
    // A child's copy has no thread to join, and mutexes that nobody will ever unlock: it is left alone.
    if (forked()) (void)communicator_.release();
  }

  const char* name() const noexcept override { return "tcp"; }
  int rank() const noexcept override { return communicator_->rank; }
  int size() const noexcept override { return communicator_->size; }
  std::size_t slot_bytes() const noexcept override { return communicator_->slot; }
  std::size_t overhead_bytes() const noexcept override { return kTcpFrameBytes; }
  bool releases_buffers_on_failure() const noexcept override { return true; }
  const char* medium(int peer) const noexcept override {
    return communicator_->shares_memory_with(peer) ? "shm" : "tcp";
  }
  // A child of fork() has no mapping of what is shared.
  std::size_t buffer_bytes() const noexcept override { return forked() ? 0 : communicator_->buffer_bytes(); }

  void post(const TransportOp* ops, std::size_t n, Ticket* tickets) override {
    if (forked()) throw used_after_fork();
    communicator_->post(ops, n, tickets);
  }
  void wait_all(const Ticket* tickets, std::size_t n, std::size_t* received, Deadline deadline) override {
    if (forked()) throw used_after_fork();
    communicator_->wait_all(tickets, n, received, deadline);
  }
  bool ready(const Ticket* tickets, std::size_t n) override {
    if (forked()) throw used_after_fork();
    return communicator_->ready(tickets, n);
  }
  void abort(const Error& why) noexcept override {
    if (!forked()) communicator_->abort(why);
  }
  void close() noexcept override {
    if (!forked()) communicator_->close();
  }

 private:
  bool forked() const noexcept { return fork_generation() != generation_; }

  const unsigned generation_;
  std::unique_ptr<tcp::Communicator> communicator_;
};

void check_shape(int rank, int size, std::size_t slot) {
  if (size < 1 || size > kMostRanks)
    throw Error(Code::kInvalid, "size: " + std::to_string(size) + " ranks cannot form a communicator");
  if (rank < 0 || rank >= size) {
    throw Error(Code::kInvalid,
                "rank: " + std::to_string(rank) + " is not in a world of " + std::to_string(size));
  }
  if (slot == 0 || slot > (std::size_t{1} << 30)) {
    throw Error(Code::kInvalid, "slot: " + std::to_string(slot) + " bytes, expected 1 to 2^30");
  }
}

}  // namespace

TcpToken random_token() {
  TcpToken token;
  // Requests of up to 256 bytes are never cut short.
  while (::getrandom(token.data(), token.size(), 0) < 0) {
    if (errno != EINTR) throw Error(Code::kInternal, "getrandom: " + tcp::errno_text(errno));
  }
  return token;
}

TcpListener::TcpListener(const std::string& host) {
  int error = 0;
  for (const tcp::SocketAddress& address : tcp::resolve(host, 0)) {
    fd_ = tcp::Fd::stream_socket(address.family());
    if (fd_.valid() && ::bind(fd_.get(), address.get(), address.length) == 0 &&
        ::listen(fd_.get(), SOMAXCONN) == 0) {
      tcp::SocketAddress bound;
      bound.length = sizeof bound.storage;
      ::getsockname(fd_.get(), bound.get(), &bound.length);
      address_ = tcp::format_address(bound);
      local_fd_ = tcp::listen_locally(address_);
      return;
    }
    error = errno;
  }
  throw Error(Code::kInvalid, "host '" + host + "': cannot listen there (" + tcp::errno_text(error) + ")");
}

std::unique_ptr<Transport> make_tcp(TcpListener& listener, int rank, int size,
                                    const std::vector<std::string>& addresses, const TcpToken& token,
                                    std::size_t slot, Deadline deadline, bool shared_memory) {
  struct CloseAfterwards {
    TcpListener& listener;
    ~CloseAfterwards() { listener.close(); }
  } close_afterwards{listener};
  check_shape(rank, size, slot);
  if (addresses.size() != static_cast<std::size_t>(size)) {
    throw Error(Code::kInvalid, "addresses: " + std::to_string(addresses.size()) + " for a world size of " +
                                    std::to_string(size));
  }
  if (!listener.fd().valid()) throw Error(Code::kInvalid, "listener: it was used for a communicator before");
  if (!shared_memory) listener.close_local();
  const tcp::MeshSetup setup{rank, size, slot, token, addresses, listener.fd(), listener.local_fd()};
  return std::make_unique<TcpTransport>(rank, size, slot, tcp::connect_mesh(setup, deadline));
}

std::unique_ptr<Transport> make_tcp_env(int rank, int size, const std::string& master_host, int master_port,
                                        const std::string& interface_name, std::size_t slot, Deadline deadline,
                                        bool shared_memory) {
  check_shape(rank, size, slot);
  if (master_port < 1 || master_port > 65535) {
    throw Error(Code::kInvalid, "MASTER_PORT: " + std::to_string(master_port) + " is not a port");
  }
  if (size == 1) return std::make_unique<TcpTransport>(rank, size, slot, tcp::Mesh{});
  const tcp::RendezvousPlace place{master_host, master_port, interface_name};
  tcp::Rendezvous met = rank == 0 ? tcp::serve_rendezvous(place, size, deadline)
                                  : tcp::join_rendezvous(place, rank, size, deadline);
  return make_tcp(*met.listener, rank, size, met.addresses, met.token, slot, deadline, shared_memory);
}

}  // namespace gcomm
