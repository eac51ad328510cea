#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>

#include "transport/failures.h"
#include "transport/tcp/rendezvous.h"
#include "transport/tcp/rendezvous_messages.h"

namespace gcomm::tcp {
namespace {

constexpr std::size_t kMaxUnknown = 256;
// After a failure, how long rank 0 stays to tell ranks that come later.
constexpr std::chrono::seconds kTellLate{2};
// How long a client that does not read its reply is waited for.
constexpr std::chrono::milliseconds kReplyPatience{500};

// Addresses to serve at. A name other than localhost may stand for another address where it is looked up next
// (or for 127.0.1.1 here), so it is served on all of them.
std::vector<SocketAddress> places_to_bind(const RendezvousPlace& place) {
  const auto port = static_cast<std::uint16_t>(place.port);
  std::vector<SocketAddress> addresses = resolve(place.host, port);
  bool literal = false;
  for (const SocketAddress& address : addresses) literal = literal || format_host(address) == place.host;
  std::vector<SocketAddress> any = resolve("::", port);
  any.push_back(resolve("0.0.0.0", port).front());
  if (literal || place.host == "localhost") {
    // An address that is not this machine's own (a forwarded one) can only be served on all.
    addresses.insert(addresses.end(), any.begin(), any.end());
    return addresses;
  }
  return any;
}

struct Client {
  Fd fd;
  std::size_t got = 0;
  std::array<char, sizeof(Claim)> claim;
};

class Server {
 public:
  Server(const RendezvousPlace& place, int size, Deadline deadline)
      : place_(place), size_(size), known_(static_cast<std::size_t>(size)), addresses_(known_.size()) {
    // Those who wait for the reply have the same deadline: an error must reach them before it.
    const auto span = deadline - Clock::now();
    deadline_ = deadline - std::min<Clock::duration>(std::chrono::seconds(1), span / 10);
    started_ = Clock::now();
    bind();
  }

  Rendezvous serve() {
    std::size_t missing = known_.size() - 1;
    while (missing > 0) {
      if (Clock::now() >= deadline_) fail(missing_error());
      const int rank = poll_once();
      if (rank > 0) --missing;
    }
    listener_.close();
    return hand_out();
  }

 private:
  void bind();
  int poll_once();
  void accept_all();
  std::optional<bool> read(Client& client);
  int admit(Client& client);
  Rendezvous hand_out();
  void reply(const Fd& fd, Code code, int culprit, const std::string& payload) const;
  Error missing_error() const;
  [[noreturn]] void fail(const Error& why);

  const RendezvousPlace& place_;
  const int size_;
  Clock::time_point started_;
  Deadline deadline_;
  Fd listener_;
  std::vector<Fd> known_;  // by rank: connections that wait for the reply
  std::vector<std::string> addresses_;
  std::list<Client> unknown_;
};

void Server::bind() {
  int error = 0;
  for (int offset = 0; offset < kTcpRendezvousPorts && place_.port + offset <= 65535; ++offset) {
    for (SocketAddress address : places_to_bind(place_)) {
      address.set_port(static_cast<std::uint16_t>(place_.port + offset));
      Fd fd = Fd::stream_socket(address.family());
      if (!fd.valid()) {
        error = errno;
        continue;
      }
      // Connections of an earlier run that linger do not hold the port; a listener does.
      const int on = 1;
      const int off = 0;
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(fd.get(), address.get(), address.length) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
        listener_ = std::move(fd);
        return;
      }
      error = errno;
      if (error == EADDRINUSE) break;  // the wildcard would only hide a launcher's store there
    }
  }
  throw Error(Code::kInvalid, "MASTER_PORT: rank 0 cannot serve at " + place_.host + ":" +
                                  std::to_string(place_.port) + " or the " +
                                  std::to_string(kTcpRendezvousPorts - 1) + " ports after it (" +
                                  errno_text(error) + ")");
}

// The rank that was admitted, or 0.
int Server::poll_once() {
  std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
  std::vector<std::list<Client>::iterator> clients;
  for (auto client = unknown_.begin(); client != unknown_.end(); ++client) {
    fds.push_back({client->fd.get(), POLLIN, 0});
    clients.push_back(client);
  }
  const std::size_t first_known = fds.size();
  std::vector<int> ranks;
  for (int r = 1; r < size_; ++r) {
    const Fd& fd = known_[static_cast<std::size_t>(r)];
    if (!fd.valid()) continue;
    fds.push_back({fd.get(), POLLIN, 0});
    ranks.push_back(r);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
  const auto wait = std::clamp<long>(left.count(), 0, 1000);
  if (::poll(fds.data(), fds.size(), static_cast<int>(wait)) <= 0) return 0;
  // A rank that was admitted says nothing further: what can be read is its end.
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (fds[first_known + i].revents != 0) fail(peer_lost(ranks[i]));
  }
  int admitted = 0;
  for (std::size_t i = 0; i < clients.size() && admitted == 0; ++i) {
    if (fds[1 + i].revents == 0) continue;
    const std::optional<bool> whole = read(*clients[i]);
    if (whole.value_or(false)) admitted = admit(*clients[i]);
    if (!whole || *whole) unknown_.erase(clients[i]);
  }
  if (fds[0].revents != 0) accept_all();
  return admitted;
}

void Server::accept_all() {
  for (int i = 0; i < 64; ++i) {
    Client client;
    client.fd = Fd::accept(listener_);
    if (!client.fd.valid()) {
      if ((errno != EMFILE && errno != ENFILE) || unknown_.empty()) return;
      unknown_.pop_front();
      continue;
    }
    const Banner banner{kRendezvousMagic, kProtocolVersion, static_cast<std::uint32_t>(place_.port)};
    if (::send(client.fd.get(), &banner, sizeof banner, MSG_NOSIGNAL) < 0) continue;
    unknown_.push_back(std::move(client));
    if (unknown_.size() > kMaxUnknown) unknown_.pop_front();
  }
}

// Whether the claim is complete; nothing if this is no client, or one no longer.
std::optional<bool> Server::read(Client& client) {
  const long n = ::recv(client.fd.get(), client.claim.data() + client.got, client.claim.size() - client.got, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return std::nullopt;
  client.got += static_cast<std::size_t>(n);
  const std::size_t magic_bytes = std::min(client.got, sizeof kRendezvousMagic);
  if (std::memcmp(client.claim.data(), &kRendezvousMagic, magic_bytes) != 0) return std::nullopt;
  return client.got == client.claim.size();
}

int Server::admit(Client& client) {
  Claim claim;
  std::memcpy(&claim, client.claim.data(), sizeof claim);
  const std::string name = "rank " + std::to_string(claim.rank);
  const auto refuse = [&](const std::string& text) {
    const Error why(Code::kInvalid, text, static_cast<int>(claim.rank));
    reply(client.fd, why.code(), why.peer(), why.what());
    fail(why);
  };
  if (claim.size != static_cast<std::uint32_t>(size_)) {
    refuse("WORLD_SIZE: " + name + " has " + std::to_string(claim.size) + ", rank 0 has " +
           std::to_string(size_));
  }
  if (claim.rank >= claim.size) refuse("RANK: " + name + " is not in a world of " + std::to_string(size_));
  if (claim.rank == 0 || known_[claim.rank].valid()) refuse("RANK: two processes are " + name);
  claim.address.back() = '\0';
  addresses_[claim.rank] = claim.address.data();
  known_[claim.rank] = std::move(client.fd);
  return static_cast<int>(claim.rank);
}

Rendezvous Server::hand_out() {
  Rendezvous result;
  std::string host;
  if (!place_.interface_name.empty()) {
    host = choose_host(place_.interface_name, "");
  } else {
    // Where the others reached this rank, from outside the machine if anybody did.
    for (std::size_t r = 1; r < known_.size(); ++r) {
      SocketAddress mine;
      mine.length = sizeof mine.storage;
      ::getsockname(known_[r].get(), mine.get(), &mine.length);
      if (host.empty() || !mine.is_loopback()) host = format_host(mine);
    }
  }
  result.listener = std::make_unique<TcpListener>(host);
  result.token = random_token();
  addresses_[0] = result.listener->address();
  result.addresses = addresses_;
  std::string table(result.token.begin(), result.token.end());
  for (const std::string& address : addresses_) {
    std::string text = address;
    text.resize(kAddressText);
    table += text;
  }
  for (std::size_t r = 1; r < known_.size(); ++r) reply(known_[r], Code::kOk, -1, table);
  return result;
}

void Server::reply(const Fd& fd, Code code, int culprit, const std::string& payload) const {
  const Reply header{kRendezvousMagic, static_cast<std::uint32_t>(code), culprit,
                     static_cast<std::uint32_t>(payload.size()), 0};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += payload;
  std::size_t sent = 0;
  const Deadline end = Clock::now() + kReplyPatience;
  while (sent < bytes.size() && Clock::now() < end) {
    const long n = ::send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd writable{fd.get(), POLLOUT, 0};
      ::poll(&writable, 1, 100);
    } else if (errno != EINTR) {
      return;  // it will be missed where it should have connected
    }
  }
}

Error Server::missing_error() const {
  std::string list;
  int n = 0;
  int culprit = -1;
  for (std::size_t r = 1; r < known_.size(); ++r) {
    if (known_[r].valid()) continue;
    list += (n++ > 0 ? ", " : "") + std::to_string(r);
    if (culprit < 0) culprit = static_cast<int>(r);
  }
  const auto waited =
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started_ + std::chrono::milliseconds(500))
          .count();
  return Error(Code::kTimeout,
               "rank 0: no word from rank" + std::string(n > 1 ? "s " : " ") + list + " within " +
                   std::to_string(waited) + " s (rendezvous at " + place_.host + ":" +
                   std::to_string(place_.port) + ")",
               culprit);
}

// Everybody who came or comes within a moment gets the same error.
void Server::fail(const Error& why) {
  std::size_t told = 1;
  for (std::size_t r = 1; r < known_.size(); ++r) {
    if (!known_[r].valid()) continue;
    reply(known_[r], why.code(), why.peer(), why.what());
    ++told;
  }
  const Deadline end = std::min(Clock::now() + kTellLate, deadline_);
  while (told < known_.size() && Clock::now() < end) {
    accept_all();
    for (auto client = unknown_.begin(); client != unknown_.end();) {
      const std::optional<bool> whole = read(*client);
      if (whole.value_or(false)) {
        reply(client->fd, why.code(), why.peer(), why.what());
        ++told;
      }
      client = !whole || *whole ? unknown_.erase(client) : std::next(client);
    }
    ::poll(nullptr, 0, 10);
  }
  throw why;
}

}  // namespace

Rendezvous serve_rendezvous(const RendezvousPlace& place, int size, Deadline deadline) {
  return Server(place, size, deadline).serve();
}

}  // namespace gcomm::tcp
