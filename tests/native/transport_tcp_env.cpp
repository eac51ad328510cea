// Communicators from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: the rendezvous.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "check.h"
#include "transport/tcp/tcp.h"
#include "transport_harness.h"

namespace {

using namespace harness;

constexpr std::size_t kSlot = 4096;

bool is_free(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool good = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return good;
}

// A port that was free a moment ago, as was every other that a rendezvous may move on to. Below the range
// that outgoing connections are given by default (32768 and up), and at random, so that tests that run side
// by side do not meet.
int free_port() {
  static std::mt19937 random{std::random_device{}()};
  for (;;) {
    const int port = std::uniform_int_distribution<int>(10000, 32000)(random);
    int offset = 0;
    while (offset < gcomm::kTcpRendezvousPorts && is_free(port + offset)) ++offset;
    if (offset == gcomm::kTcpRendezvousPorts) return port;
  }
}

// A listener that is no rendezvous: silent, like a launcher's store, or talkative.
class Occupant {
 public:
  Occupant(int port, bool talks, int family = AF_INET) : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_any;
    v6.sin6_port = htons(static_cast<std::uint16_t>(port));
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4.sin_port = htons(static_cast<std::uint16_t>(port));
    const int on = 1, off = 0;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) ::setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    good_ = (family == AF_INET6 ? ::bind(fd_, reinterpret_cast<sockaddr*>(&v6), sizeof v6)
                                : ::bind(fd_, reinterpret_cast<sockaddr*>(&v4), sizeof v4)) == 0 &&
            ::listen(fd_, 64) == 0;
    thread_ = std::thread([this, talks] {
      for (;;) {
        const int client = ::accept(fd_, nullptr, nullptr);
        if (client < 0) return;
        if (talks) (void)!::send(client, "220 welcome to something else altogether\r\n", 42, MSG_NOSIGNAL);
        clients_.push_back(client);
        char byte;
        if (::recv(client, &byte, 1, talks ? MSG_DONTWAIT : 0) > 0) ++bytes_heard_;
      }
    });
  }
  ~Occupant() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
    for (const int client : clients_) ::close(client);
  }
  bool good() const { return good_; }
  int bytes_heard() const { return bytes_heard_; }

 private:
  int fd_;
  bool good_ = false;
  std::atomic<int> bytes_heard_{0};
  std::vector<int> clients_;
  std::thread thread_;
};

std::unique_ptr<Transport> make(int rank, int size, int port, double seconds = 20,
                                const std::string& host = "127.0.0.1", const std::string& interface_name = "") {
  return gcomm::make_tcp_env(rank, size, host, port, interface_name, kSlot, in_seconds(seconds));
}

void ring(Transport& transport) {
  if (transport.size() == 1) return;
  const int size = transport.size();
  int out = transport.rank(), in = -1;
  const TransportOp ops[2] = {recv_op((out + size - 1) % size, &in, sizeof in),
                              send_op((out + 1) % size, &out, sizeof out)};
  Ticket tickets[2];
  transport.post(ops, 2, tickets);
  transport.wait_all(tickets, 2, nullptr, in_seconds(10));
  if (in != (out + size - 1) % size) throw Error(Code::kInternal, "wrong bytes");
}

void check_all_good(const std::vector<std::optional<Error>>& thrown, const char* what) {
  for (const auto& error : thrown) CHECK(!error, "%s: %s", what, error->what());
}

void test_worlds() {
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    for (int size = 1; size <= 4; ++size) {
      const int port = free_port();
      check_all_good(in_threads(size, [&](int r) { ring(*make(r, size, port, 20, host)); }), host);
    }
  }
  const int port = free_port();
  check_all_good(in_threads(3, [&](int r) { ring(*make(r, 3, port, 20, "127.0.0.1", "lo")); }), "interface");
}

void test_occupied() {
  for (const bool talks : {false, true}) {
    const int port = free_port();
    Occupant first(port, talks);
    Occupant second(port + 1, !talks, AF_INET6);  // dual stack, as launchers listen
    CHECK(first.good() && second.good());
    const auto start = Clock::now();
    check_all_good(in_threads(3, [&](int r) { ring(*make(r, 3, port)); }), "occupied");
    CHECK(Clock::now() - start < std::chrono::seconds(2), "a silent stranger at the port costs time");
    CHECK(first.bytes_heard() + second.bytes_heard() == 0, "a store heard something it does not understand");
  }
  const int port = free_port();
  std::vector<std::unique_ptr<Occupant>> all;
  for (int i = 0; i < gcomm::kTcpRendezvousPorts; ++i)
    all.push_back(std::make_unique<Occupant>(port + i, false));
  const auto error = failure_of([&] { make(0, 2, port, 2); });
  CHECK(error && error->code() == Code::kInvalid &&
            std::string(error->what()).find("MASTER_PORT: rank 0 cannot serve at") == 0,
        "%s", error->what());
  CHECK_THROWS(make(0, 2, 0), Code::kInvalid);
  CHECK_THROWS(make(2, 2, port), Code::kInvalid);
}

void test_late() {
  const int port = free_port();
  check_all_good(in_threads(3,
                            [&](int r) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(r == 0 ? 700 : r * 100));
                              ring(*make(r, 3, port));
                            }),
                 "late");
}

// One communicator after the other from the same port, with ranks that are ahead of rank 0.
void test_again() {
  const int port = free_port();
  check_all_good(in_threads(3,
                            [&](int r) {
                              for (int i = 0; i < 8; ++i) {
                                const auto transport = make(r, 3, port);
                                if (r == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                ring(*transport);
                              }
                            }),
                 "again");
}

void test_overlapping_jobs() {
  const int port = free_port();
  Occupant pushes_the_first_on(port, false);
  check_all_good(in_threads(4, [&](int i) { ring(*make(i / 2, 2, port + i % 2)); }), "two jobs");
}

void test_missing() {
  {
    const int port = free_port();
    const auto start = Clock::now();
    const auto thrown = in_threads(3, [&](int r) { make(r == 2 ? 3 : r, 5, port, 1.5); });
    CHECK(Clock::now() - start < std::chrono::milliseconds(2500));
    for (const auto& error : thrown) {
      CHECK(error && error->code() == Code::kTimeout && error->peer() == 2);
      CHECK(error && std::string(error->what()).find("rank 0: no word from ranks 2, 4 within") == 0, "%s",
            error->what());
    }
  }
  const int port = free_port();
  const auto error = failure_of([&] { make(1, 2, port, 0.6); });
  CHECK(error && error->code() == Code::kTimeout && error->peer() == 0);
  CHECK(error && std::string(error->what()).find("rank 1: found no rendezvous of rank 0 at 127.0.0.1:") == 0,
        "%s", error->what());
}

void test_disagreement() {
  {
    // Two processes are rank 1; rank 2 comes when that is known already.
    const int port = free_port();
    const auto start = Clock::now();
    const auto thrown = in_threads(4, [&](int i) {
      if (i == 3) std::this_thread::sleep_for(std::chrono::milliseconds(500));
      make(i == 3 ? 2 : (i == 2 ? 1 : i), 3, port, 10);
    });
    CHECK(Clock::now() - start < std::chrono::seconds(5));
    for (const auto& error : thrown) {
      CHECK(error && error->code() == Code::kInvalid && error->peer() == 1);
      CHECK(error && std::string(error->what()) == "RANK: two processes are rank 1", "%s", error->what());
    }
  }
  const int port = free_port();
  const auto thrown = in_threads(3, [&](int r) { make(r, r == 1 ? 4 : 3, port, 10); });
  for (const auto& error : thrown) {
    CHECK(error && error->code() == Code::kInvalid && error->peer() == 1);
    CHECK(error && std::string(error->what()) == "WORLD_SIZE: rank 1 has 4, rank 0 has 3", "%s", error->what());
  }
}

void test_strangers() {
  const int port = free_port();
  std::atomic<bool> over{false};
  std::vector<int> fds;
  std::thread strangers([&] {
    const auto target = gcomm::tcp::parse_address("127.0.0.1:" + std::to_string(port), "address");
    while (!over) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(fd, target.get(), target.length) == 0 && fds.size() < 600) {
        if (fds.size() % 3 == 1) (void)!::send(fd, "hello?", 6, MSG_NOSIGNAL);
        if (fds.size() % 3 == 2) (void)!::send(fd, "GCCR", 4, MSG_NOSIGNAL);  // half of what belongs there
        fds.push_back(fd);
      } else {
        ::close(fd);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  });
  const auto start = Clock::now();
  check_all_good(in_threads(3,
                            [&](int r) {
                              if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
                              ring(*make(r, 3, port));
                            }),
                 "strangers");
  CHECK(Clock::now() - start < std::chrono::seconds(5));
  over = true;
  strangers.join();
  CHECK(!fds.empty());
  for (const int fd : fds) ::close(fd);
}

}  // namespace

int main() {
  test_worlds();
  test_occupied();
  test_late();
  test_again();
  test_overlapping_jobs();
  test_missing();
  test_disagreement();
  test_strangers();
  return check::report("transport_tcp_env");
}
