#include "transport/tcp/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "transport/tcp/socket.h"

namespace gcomm::tcp {
namespace {

std::vector<SocketAddress> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0) {
    throw Error(Code::kInvalid,
                "host '" + host +
                    "': " + (result == EAI_SYSTEM ? errno_text(errno) : std::string(::gai_strerror(result))));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) throw Error(Code::kInvalid, "host '" + host + "' has no IP address");
  return addresses;
}

bool is_link_local(const SocketAddress& address) {
  if (address.family() != AF_INET6) return false;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

// IPv4 first, link-local IPv6 (whose text means something on this machine only) last.
int preference(const SocketAddress& address) {
  if (address.family() == AF_INET) return 0;
  return is_link_local(address) ? 2 : 1;
}

// The interface's best address, or nothing.
std::vector<SocketAddress> addresses_of(const std::string& interface_name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw Error(Code::kInternal, "getifaddrs: " + errno_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<SocketAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || interface_name != entry->ifa_name || (entry->ifa_flags & IFF_UP) == 0)
      continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.length);
    addresses.push_back(address);
  }
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const auto& a, const auto& b) { return preference(a) < preference(b); });
  return addresses;
}

// A connected datagram socket sends nothing; it only asks the routing table which address would be used.
std::string route_to(const std::string& master_host) {
  int error = 0;
  for (const SocketAddress& master : resolve(master_host, 9)) {
    const Fd probe = Fd::datagram_socket(master.family());
    SocketAddress mine;
    mine.length = sizeof mine.storage;
    if (probe.valid() && ::connect(probe.get(), master.get(), master.length) == 0 &&
        ::getsockname(probe.get(), mine.get(), &mine.length) == 0) {
      return format_host(mine);
    }
    error = errno;
  }
  throw Error(Code::kInvalid, "host '" + master_host + "': no route to it (" + errno_text(error) + ")");
}

}  // namespace

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

bool SocketAddress::is_loopback() const noexcept {
  if (family() == AF_INET6) {
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
  }
  return (ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24) == 127;
}

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port) {
  return look_up(host, port, 0);
}

std::string format_host(const SocketAddress& address) {
  // An IPv4 peer of a dual-stack socket is written as IPv4.
  SocketAddress plain = address;
  if (address.family() == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_port = v6.sin6_port;
      std::memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], 4);
      std::memcpy(&plain.storage, &v4, sizeof v4);
      plain.length = sizeof v4;
    }
  }
  char host[NI_MAXHOST];
  const int result = ::getnameinfo(plain.get(), plain.length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  if (result != 0) throw Error(Code::kInternal, std::string("getnameinfo: ") + ::gai_strerror(result));
  return host;
}

std::string format_address(const SocketAddress& address) {
  const std::string host = format_host(address);
  // The port sits at the same place in both families.
  const int port = ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

SocketAddress parse_address(const std::string& text, const std::string& what) {
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  bool good = colon != std::string::npos && colon > 0;
  if (good) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
    good = error == std::errc() && stop == end && port != 0;
  }
  if (good) {
    std::string host = text.substr(0, colon);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    if (bracketed) host = host.substr(1, host.size() - 2);
    try {
      return look_up(host, port, AI_NUMERICHOST).front();
    } catch (const Error&) {
      // Said below, with the name of the argument.
    }
  }
  throw Error(Code::kInvalid, what + ": '" + text + "' is not ip:port");
}

std::string choose_host(const std::string& interface_name, const std::string& master_host) {
  if (!interface_name.empty()) {
    std::istringstream names(interface_name);
    for (std::string name; std::getline(names, name, ',');) {
      const std::vector<SocketAddress> addresses = addresses_of(name);
      if (!addresses.empty()) return format_host(addresses.front());
    }
    throw Error(Code::kInvalid,
                "network interface '" + interface_name + "' is not there, not up, or has no address");
  }
  return master_host.empty() ? "127.0.0.1" : route_to(master_host);
}

}  // namespace gcomm::tcp
