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

constexpr std::chrono::milliseconds kRetryPause{50};
// How long a client waits for a greeting before it tries all ports anew: the rendezvous may open meanwhile.
constexpr std::chrono::milliseconds kGreetingPatience{500};
// Longest reply that a server can mean: far more ranks than there are ports.
constexpr std::uint32_t kMaxReply = (65536 + 1) * kAddressText;

int poll_for(std::vector<pollfd>& fds, Deadline end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<long>(left, 0, 1000)));
}

struct Candidate {
  Fd fd;
  bool dead = false;
  std::size_t got = 0;
  std::array<char, sizeof(Banner)> banner;
};

// Reads the greeting as far as it has come.
enum class Greeting { kNotYet, kRight, kWrong };
Greeting read_greeting(Candidate& candidate, int port) {
  const long n = ::recv(candidate.fd.get(), candidate.banner.data() + candidate.got,
                        candidate.banner.size() - candidate.got, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Greeting::kNotYet;
  if (n <= 0) return Greeting::kWrong;
  candidate.got += static_cast<std::size_t>(n);
  if (candidate.got < candidate.banner.size()) return Greeting::kNotYet;
  Banner banner;
  std::memcpy(&banner, candidate.banner.data(), sizeof banner);
  const bool right = banner.magic == kRendezvousMagic && banner.port == static_cast<std::uint32_t>(port);
  if (right && banner.version != kProtocolVersion) {
    throw Error(Code::kInvalid, "version: rank 0 speaks version " + std::to_string(banner.version) +
                                    " of gcomm's connections, this rank version " +
                                    std::to_string(kProtocolVersion));
  }
  return right ? Greeting::kRight : Greeting::kWrong;
}

// One try of all ports at all addresses; the connection that greeted, if any did.
Fd try_all(const std::vector<SocketAddress>& hosts, int port, Deadline end) {
  std::vector<Candidate> candidates;
  for (int offset = 0; offset < kTcpRendezvousPorts && port + offset <= 65535; ++offset) {
    for (SocketAddress address : hosts) {
      address.set_port(static_cast<std::uint16_t>(port + offset));
      Candidate candidate;
      candidate.fd = Fd::stream_socket(address.family());
      if (!candidate.fd.valid()) continue;
      if (::connect(candidate.fd.get(), address.get(), address.length) == 0 || errno == EINPROGRESS) {
        candidates.push_back(std::move(candidate));
      }
    }
  }
  while (Clock::now() < end) {
    std::vector<pollfd> fds;
    std::vector<Candidate*> alive;
    for (Candidate& candidate : candidates) {
      if (candidate.dead) continue;
      fds.push_back({candidate.fd.get(), POLLIN, 0});
      alive.push_back(&candidate);
    }
    if (alive.empty()) break;
    poll_for(fds, end);
    for (std::size_t i = 0; i < alive.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const Greeting greeting = read_greeting(*alive[i], port);
      if (greeting == Greeting::kRight) return std::move(alive[i]->fd);
      alive[i]->dead = greeting == Greeting::kWrong;
    }
  }
  return Fd();
}

// False if the connection ended, or the deadline passed, before all bytes had come.
bool receive_exactly(const Fd& fd, char* data, std::size_t bytes, Deadline deadline) {
  for (std::size_t got = 0; got < bytes;) {
    const long n = ::recv(fd.get(), data + got, bytes - got, 0);
    if (n > 0) {
      got += static_cast<std::size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || Clock::now() >= deadline) {
      return false;
    } else {
      std::vector<pollfd> readable{{fd.get(), POLLIN, 0}};
      poll_for(readable, deadline);
    }
  }
  return true;
}

Rendezvous read_table(const std::string& table, int size) {
  Rendezvous result;
  if (table.size() != result.token.size() + static_cast<std::size_t>(size) * kAddressText) {
    throw Error(Code::kInternal, "the rendezvous sent a table of the wrong length");
  }
  std::memcpy(result.token.data(), table.data(), result.token.size());
  for (int r = 0; r < size; ++r) {
    const char* text = table.data() + result.token.size() + static_cast<std::size_t>(r) * kAddressText;
    result.addresses.emplace_back(text, ::strnlen(text, kAddressText));
  }
  return result;
}

// Makes this rank's listener where rank 0 can be reached, claims the rank, and waits for the table. Nothing if
// rank 0 went away without a word: it may have been an earlier one.
std::optional<Rendezvous> claim_rank(const Fd& fd, const RendezvousPlace& place, int rank, int size,
                                     Deadline deadline) {
  SocketAddress mine;
  mine.length = sizeof mine.storage;
  ::getsockname(fd.get(), mine.get(), &mine.length);
  auto listener = std::make_unique<TcpListener>(
      place.interface_name.empty() ? format_host(mine) : choose_host(place.interface_name, ""));
  Claim claim{kRendezvousMagic, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), {}};
  listener->address().copy(claim.address.data(), claim.address.size() - 1);
  if (::send(fd.get(), &claim, sizeof claim, MSG_NOSIGNAL) != static_cast<long>(sizeof claim))
    return std::nullopt;

  Reply reply;
  std::string payload;
  bool good = receive_exactly(fd, reinterpret_cast<char*>(&reply), sizeof reply, deadline) &&
              reply.magic == kRendezvousMagic && reply.bytes <= kMaxReply;
  if (good) {
    payload.resize(reply.bytes);
    good = receive_exactly(fd, payload.data(), payload.size(), deadline);
  }
  if (!good) return std::nullopt;
  if (reply.code != 0) throw Error(static_cast<Code>(reply.code), payload, reply.culprit);
  Rendezvous result = read_table(payload, size);
  result.listener = std::move(listener);
  return result;
}

}  // namespace

Rendezvous join_rendezvous(const RendezvousPlace& place, int rank, int size, Deadline deadline) {
  const Clock::time_point start = Clock::now();
  const std::vector<SocketAddress> hosts = resolve(place.host, static_cast<std::uint16_t>(place.port));
  bool found = false;
  while (Clock::now() < deadline) {
    const Fd fd = try_all(hosts, place.port, std::min(deadline, Clock::now() + kGreetingPatience));
    if (fd.valid()) {
      found = true;
      std::optional<Rendezvous> met = claim_rank(fd, place, rank, size, deadline);
      if (met) return std::move(*met);
    }
    ::poll(nullptr, 0, static_cast<int>(kRetryPause.count()));
  }
  const auto waited = std::chrono::round<std::chrono::seconds>(Clock::now() - start).count();
  throw Error(Code::kTimeout,
              "rank " + std::to_string(rank) + ": " +
                  (found ? "rank 0's rendezvous answered no more" : "found no rendezvous of rank 0") + " at " +
                  place.host + ":" + std::to_string(place.port) + " or the " +
                  std::to_string(kTcpRendezvousPorts - 1) + " ports after it within " + std::to_string(waited) +
                  " s",
              0);
}

}  // namespace gcomm::tcp
