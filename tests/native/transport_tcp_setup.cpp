// How TCP communicators come about: strangers, ranks that are missing or disagree, addresses.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "check.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp.h"
#include "transport_harness.h"

namespace {

using namespace harness;
using gcomm::TcpListener;
using gcomm::TcpToken;

constexpr std::size_t kSlot = 65536;
const TcpToken kToken = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// A plain blocking socket, as anybody could open one. -1 if refused.
int stranger(const std::string& address) {
  const gcomm::tcp::SocketAddress target = gcomm::tcp::parse_address(address, "address");
  const int fd = ::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, target.get(), target.length) == 0) return fd;
  ::close(fd);
  return -1;
}

void say(int fd, const void* data, std::size_t bytes) { (void)!::send(fd, data, bytes, MSG_NOSIGNAL); }

gcomm::tcp::Hello hello(std::uint32_t rank, std::uint32_t target, std::uint32_t connection, std::uint32_t size,
                        const TcpToken& token) {
  return {
      gcomm::tcp::kHelloMagic, gcomm::tcp::kProtocolVersion, rank, target, connection, size, 0, kSlot, token};
}

struct World {
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;

  explicit World(int size, const std::string& host = "127.0.0.1") {
    for (int r = 0; r < size; ++r) {
      listeners.emplace_back(host);
      addresses.push_back(listeners.back().address());
    }
  }
  std::unique_ptr<Transport> make(int rank, double seconds = 20, const TcpToken& token = kToken,
                                  std::size_t slot = kSlot) {
    const int size = static_cast<int>(listeners.size());
    return gcomm::make_tcp(listeners[static_cast<std::size_t>(rank)], rank, size, addresses, token, slot,
                           in_seconds(seconds));
  }
};

void check_works(const Ranks& ranks) {
  const int size = static_cast<int>(ranks.size());
  const auto thrown = in_threads(size, [&](int r) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == r) continue;
      int out = r * 100 + peer, in = -1;
      const TransportOp ops[2] = {recv_op(peer, &in, sizeof in), send_op(peer, &out, sizeof out)};
      Ticket tickets[2];
      ranks[static_cast<std::size_t>(r)]->post(ops, 2, tickets);
      ranks[static_cast<std::size_t>(r)]->wait_all(tickets, 2, nullptr, in_seconds(10));
      if (in != peer * 100 + r) throw Error(Code::kInternal, "wrong bytes");
    }
  });
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
}

std::size_t open_files() {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) n += entry.exists() ? 1 : 1;
  return n;
}

void test_strangers() {
  World world(3);
  std::vector<int> fds;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& address : world.addresses) {
      for (int i = 0; i < 150; ++i) fds.push_back(stranger(address));  // silent
      fds.push_back(stranger(address));
      say(fds.back(), "GET / HTTP/1.1\r\n\r\n", 18);
      fds.push_back(stranger(address));
      const auto wrong_token = hello(2, 0, 0, 3, TcpToken{});
      say(fds.back(), &wrong_token, sizeof wrong_token);
      fds.push_back(stranger(address));
      say(fds.back(), &wrong_token, 20);  // half a hello
      fds.push_back(stranger(address));
      const std::string noise(100000, 'x');
      say(fds.back(), noise.data(), noise.size());
    }
  }
  std::atomic<bool> over{false};
  std::thread flood([&] {
    // And they keep coming while the ranks connect.
    while (!over) {
      const int fd = stranger(world.addresses[0]);
      if (fd >= 0) {
        say(fd, "x", 1);
        ::close(fd);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto start = Clock::now();
  Ranks ranks(3);
  const auto thrown = in_threads(3, [&](int r) {
    if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ranks[static_cast<std::size_t>(r)] = world.make(r);
  });
  CHECK(Clock::now() - start < std::chrono::seconds(5));
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
  if (ranks[0] && ranks[1] && ranks[2]) check_works(ranks);
  over = true;
  flood.join();
  // Nobody listens any more.
  for (const std::string& address : world.addresses) CHECK(stranger(address) == -1);
  check_works(ranks);
  for (const int fd : fds) ::close(fd);
}

void test_wrong_token() {
  World world(2);
  Ranks ranks(2);
  const auto thrown = in_threads(2, [&](int r) {
    if (r == 0) {
      ranks[0] = world.make(0);
      return;
    }
    TcpListener other("127.0.0.1");
    TcpToken wrong = kToken;
    wrong[15] ^= 1;
    const auto start = Clock::now();
    const auto error =
        failure_of([&] { gcomm::make_tcp(other, 1, 2, world.addresses, wrong, kSlot, in_seconds(20)); });
    if (!error || error->code() != Code::kInvalid || error->peer() != 0 ||
        std::string(error->what()).find("another token") == std::string::npos ||
        Clock::now() - start > std::chrono::seconds(2)) {
      throw Error(Code::kInternal, error ? error->what() : "a wrong token was taken");
    }
    ranks[1] = world.make(1);  // rank 0 was not disturbed
  });
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
  check_works(ranks);
}

void test_missing() {
  World world(3);
  const auto start = Clock::now();
  const auto thrown = in_threads(2, [&](int r) { world.make(r, 0.5); });
  CHECK(Clock::now() - start < std::chrono::seconds(3));
  for (const int r : {0, 1}) {
    const auto& error = thrown[static_cast<std::size_t>(r)];
    CHECK(error && error->code() == Code::kTimeout && error->peer() == 2);
    // Whose deadline is over first tells the other.
    const std::string text = error ? error->what() : "";
    CHECK(text == "rank 0: no connection from rank 2 within 0.5 s" ||
              text == "rank 1: no connection from rank 2 within 0.5 s",
          "%s", text.c_str());
  }
  // A rank that listens, but never comes to answer.
  World silent(2);
  const auto error = failure_of([&] { silent.make(1, 0.3); });
  const std::string expected = "rank 1: no answer from rank 0 at " + silent.addresses[0] + " within 0.3 s";
  CHECK(error && error->code() == Code::kTimeout && error->peer() == 0 && error->what() == expected, "%s",
        error->what());
  // One that is gone already.
  World gone(2);
  gone.listeners[0].close();
  const auto lost = failure_of([&] { gone.make(1, 20); });
  CHECK(lost && lost->code() == Code::kPeerLost && lost->peer() == 0, "%s", lost->what());
  // Something else altogether answers.
  World other(2);
  int blocking = 0;
  ::ioctl(other.listeners[0].fd().get(), FIONBIO, &blocking);
  std::thread server([&] {
    const int fd = ::accept(other.listeners[0].fd().get(), nullptr, nullptr);
    say(fd, "HTTP/1.1 400 Bad Request\r\nServer: not this\r\n\r\n", 46);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::close(fd);
  });
  const auto strange = failure_of([&] { other.make(1, 20); });
  server.join();
  CHECK(strange && strange->code() == Code::kInvalid && strange->peer() == 0, "%s", strange->what());
}

void test_disagreement() {
  {
    World world(2);
    auto three = world.addresses;
    three.push_back("127.0.0.1:9");
    const auto thrown = in_threads(2, [&](int r) {
      if (r == 0) world.make(0, 20);
      TcpListener own("127.0.0.1");
      if (r == 1) gcomm::make_tcp(own, 1, 3, three, kToken, kSlot, in_seconds(20));
    });
    for (const auto& error : thrown) {
      CHECK(error && error->code() == Code::kInvalid);
      const std::string text = error ? error->what() : "";
      CHECK(text.find("size: ") == 0 && text.find("with 3") != std::string::npos &&
                text.find("with 2") != std::string::npos,
            "%s", text.c_str());
    }
  }
  {
    World world(2);
    const auto thrown = in_threads(2, [&](int r) { world.make(r, 20, kToken, r == 0 ? kSlot : 2 * kSlot); });
    for (const auto& error : thrown) {
      CHECK(error && error->code() == Code::kInvalid && std::string(error->what()).find("slot: ") == 0, "%s",
            error->what());
    }
  }
  {
    // Two processes that both think they are rank 1 of 3, while rank 2 is late.
    World world(3);
    TcpListener second("127.0.0.1");
    const auto start = Clock::now();
    const auto thrown = in_threads(3, [&](int i) {
      if (i < 2) {
        world.make(i, 20);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        gcomm::make_tcp(second, 1, 3, world.addresses, kToken, kSlot, in_seconds(20));
      }
    });
    CHECK(Clock::now() - start < std::chrono::seconds(3), "they waited for rank 2");
    for (const auto& error : thrown) {
      CHECK(error && error->code() == Code::kInvalid);
      CHECK(error && std::string(error->what()) == "rank: two processes are rank 1", "%s", error->what());
    }
  }
  {
    World world(2);
    std::swap(world.addresses[0], world.addresses[1]);
    const auto error = failure_of([&] {
      const auto thrown = in_threads(2, [&](int r) { world.make(r, 2); });
      throw Error(*thrown[1]);
    });
    CHECK(error && error->code() != Code::kInternal, "%s", error->what());
  }
}

// A peer that knows the token and then sends nonsense.
void test_nonsense_from_a_peer() {
  for (const bool on_control : {false, true}) {
    World world(2);
    std::vector<int> fds;
    std::unique_ptr<Transport> transport;
    std::thread rogue([&] {
      for (std::uint32_t c = 0; c < gcomm::tcp::kConnections; ++c) {
        fds.push_back(stranger(world.addresses[0]));
        const auto greeting = hello(1, 0, c, 2, kToken);
        say(fds.back(), &greeting, sizeof greeting);
      }
    });
    transport = world.make(0);
    rogue.join();
    char data[64];
    const Ticket ticket = post_one(*transport, recv_op(1, data, sizeof data));
    const std::string noise(4000, '\x5A');
    say(fds[on_control ? gcomm::tcp::kControlConnection : 0], noise.data(), noise.size());
    const auto error = failure_of([&] { wait_one(*transport, ticket); });
    CHECK(error && error->code() == Code::kPeerLost && error->peer() == 1);
    for (const int fd : fds) ::close(fd);
  }
}

void test_addresses() {
  using gcomm::tcp::choose_host;
  CHECK(choose_host("", "") == "127.0.0.1");
  CHECK(choose_host("lo", "") == "127.0.0.1");
  CHECK(choose_host("nosuchif,lo", "ignored") == "127.0.0.1");
  CHECK(choose_host("", "127.0.0.1") == "127.0.0.1");
  CHECK(choose_host("", "localhost") == "127.0.0.1" || choose_host("", "localhost") == "::1");
  CHECK_THROWS(choose_host("nosuchif", ""), Code::kInvalid);
  CHECK_THROWS(choose_host("", "no such host"), Code::kInvalid);
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:1x",
                          ":80", "localhost:80", "[::1:80", "1.2.3:x"}) {
    CHECK_THROWS(gcomm::tcp::parse_address(bad, "addresses[0]"), Code::kInvalid);
  }
  for (const char* good : {"127.0.0.1:80", "[::1]:65535"}) {
    CHECK(gcomm::tcp::format_address(gcomm::tcp::parse_address(good, "x")) == good);
  }
  CHECK_THROWS(TcpListener("203.0.113.7"), Code::kInvalid);  // nobody's address here

  World world(2);
  CHECK_THROWS(gcomm::make_tcp(world.listeners[0], 2, 2, world.addresses, kToken, kSlot, in_seconds(1)),
               Code::kInvalid);
  CHECK_THROWS(world.make(0), Code::kInvalid);  // its listener was closed by that
  CHECK_THROWS(gcomm::make_tcp(world.listeners[1], 1, 2, {"127.0.0.1:1"}, kToken, kSlot, in_seconds(1)),
               Code::kInvalid);
  World alone(1);
  check_works([&] {
    Ranks ranks;
    ranks.push_back(alone.make(0));
    return ranks;
  }());
  CHECK(gcomm::random_token() != gcomm::random_token());
}

void test_ipv6() {
  const int probe = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool available =
      probe >= 0 && ::bind(probe, reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) == 0;
  ::close(probe);
  if (!available) {
    std::printf("no IPv6 loopback here: not tested\n");
    return;
  }
  World world(2, "::1");
  CHECK(world.addresses[0].find("[::1]:") == 0);
  Ranks ranks(2);
  const auto thrown = in_threads(2, [&](int r) { ranks[static_cast<std::size_t>(r)] = world.make(r); });
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
  check_works(ranks);
}

void test_nothing_leaks() {
  const std::size_t before = open_files();
  for (int i = 0; i < 10; ++i) {
    Ranks ranks = make_tcp_ranks(3, kSlot);
    World world(2);
    CHECK_THROWS(world.make(0, 0.01), Code::kTimeout);
  }
  CHECK(open_files() == before, "%zu files open, %zu before", open_files(), before);
}

}  // namespace

int main() {
  test_strangers();
  test_wrong_token();
  test_missing();
  test_disagreement();
  test_nonsense_from_a_peer();
  test_addresses();
  test_ipv6();
  test_nothing_leaks();
  return check::report("transport_tcp_setup");
}
