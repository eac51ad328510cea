// Native sockets between processes, for ranks on one machine or several: listeners, the full mesh of
// connections, and the rendezvous from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/address.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace gcomm {

inline constexpr std::size_t kTcpDefaultSlot = std::size_t{1} << 20;
// What a connection adds to each message; TCP's and IP's own headers are not counted.
inline constexpr std::size_t kTcpFrameBytes = 8;
// Ports after MASTER_PORT at which rank 0 may serve the rendezvous, itself included.
inline constexpr int kTcpRendezvousPorts = 16;

using TcpToken = std::array<std::uint8_t, 16>;
TcpToken random_token();

// Where one rank's peers connect to: a port that the system chose, on one address.
class TcpListener {
 public:
  // host: a name or an IP address of this machine, see tcp::choose_host(). Throws kInvalid if it is none.
  explicit TcpListener(const std::string& host);

  const std::string& address() const noexcept { return address_; }  // "ip:port", "[ip]:port" for IPv6
  const tcp::Fd& fd() const noexcept { return fd_; }
  // Where ranks of the same host offer memory; invalid if that is not possible here.
  const tcp::Fd& local_fd() const noexcept { return local_fd_; }
  void close_local() noexcept { local_fd_.close(); }
  void close() noexcept {
    fd_.close();
    local_fd_.close();
  }

 private:
  tcp::Fd fd_;
  tcp::Fd local_fd_;
  std::string address_;
};

// Connects `size` ranks. addresses: every rank's listener, by rank. token: the same random bytes on every rank;
// a connection that cannot show it is turned away. slot: longest message in bytes, the same on every rank.
// shared_memory: exchange messages through memory with the ranks of this host and network namespace that would
// do the same; each rank may choose for itself. Closes the listener, also when it throws: kInvalid for wrong
// arguments or ranks that disagree, kTimeout naming the rank that did not come by the deadline, kPeerLost for
// one that went away.
std::unique_ptr<Transport> make_tcp(TcpListener& listener, int rank, int size,
                                    const std::vector<std::string>& addresses, const TcpToken& token,
                                    std::size_t slot, Deadline deadline, bool shared_memory = true);

// The same without a channel to pass addresses on: rank 0 serves a table at the first free port of master_port
// .. master_port + kTcpRendezvousPorts - 1 (a launcher's own store may hold the first), the others look for it
// there. interface_name: where to listen; empty: where rank 0 is reached.
std::unique_ptr<Transport> make_tcp_env(int rank, int size, const std::string& master_host, int master_port,
                                        const std::string& interface_name, std::size_t slot, Deadline deadline,
                                        bool shared_memory = true);

}  // namespace gcomm
