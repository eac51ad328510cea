// Names and addresses, IPv4 and IPv6 alike.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gcomm::tcp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
  void set_port(std::uint16_t port) noexcept;
  bool is_loopback() const noexcept;
};

// What the name stands for, in the system's order of preference. Throws kInvalid if it stands for nothing.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port);

// "127.0.0.1:4242" or "[fe80::1%eth0]:4242".
std::string format_address(const SocketAddress& address);
std::string format_host(const SocketAddress& address);
// Reads what format_address() wrote; `what` names the argument in the kInvalid it throws otherwise.
SocketAddress parse_address(const std::string& text, const std::string& what);

// The address to listen on. interface_name: that network interface (a comma-separated list: the first that
// exists); else the one from which master_host is reached; else, with both empty, loopback. Numeric. Throws
// kInvalid.
std::string choose_host(const std::string& interface_name, const std::string& master_host);

}  // namespace gcomm::tcp
