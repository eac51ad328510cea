// Memory that TCP ranks of one host share: who shares it with whom, and peers that misuse it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/local_connection.h"
#include "transport/tcp/op.h"
#include "transport/tcp/shared_memory.h"
#include "transport/tcp/tcp.h"
#include "transport_harness.h"

namespace {

using namespace harness;
using gcomm::TcpListener;
using gcomm::TcpToken;
using gcomm::tcp::Fd;
using gcomm::tcp::RingEnd;
using gcomm::tcp::RingPlace;
using gcomm::tcp::SharedMemory;

constexpr std::size_t kSlot = 65536;
const TcpToken kToken = {7, 6, 5, 4, 3, 2, 1};

// Each rank chooses for itself; a pair shares memory if both do.
void test_mixed_world() {
  constexpr bool kShares[] = {true, false, true};
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < 3; ++r) addresses.push_back(listeners.emplace_back("127.0.0.1").address());
  Ranks ranks(3);
  auto thrown = in_threads(3, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    ranks[i] = gcomm::make_tcp(listeners[i], r, 3, addresses, kToken, kSlot, in_seconds(20), kShares[r]);
  });
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
  for (int r = 0; r < 3; ++r) {
    for (int peer = 0; peer < 3; ++peer) {
      const std::string expected = r != peer && kShares[r] && kShares[peer] ? "shm" : "tcp";
      CHECK(ranks[static_cast<std::size_t>(r)]->medium(peer) == expected, "%d to %d", r, peer);
    }
  }
  CHECK(ranks[0]->buffer_bytes() == 0 && ranks[1]->buffer_bytes() == 0);
  std::atomic<int> wrong{0};
  thrown = in_threads(3, [&](int r) {
    std::vector<std::vector<unsigned char>> out, in;
    std::vector<TransportOp> ops;
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < 20 && peer != r; ++i) {
        out.push_back(pattern(r, peer, i, kSlot));
        in.emplace_back(kSlot);
        ops.push_back(send_op(peer, out.back().data(), kSlot));
        ops.push_back(recv_op(peer, in.back().data(), kSlot));
      }
    }
    std::vector<Ticket> tickets(ops.size());
    Transport& transport = *ranks[static_cast<std::size_t>(r)];
    transport.post(ops.data(), ops.size(), tickets.data());
    transport.wait_all(tickets.data(), tickets.size(), nullptr, in_seconds(20));
    std::size_t at = 0;
    for (int peer = 0; peer < 3; ++peer) {
      for (int i = 0; i < 20 && peer != r; ++i) wrong += in[at++] != pattern(peer, r, i, kSlot);
    }
  });
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
  CHECK(wrong == 0);
  // Rings that were used count, up to their size.
  CHECK(ranks[0]->buffer_bytes() == 2 * kSlot && ranks[1]->buffer_bytes() == 0, "%zu, %zu",
        ranks[0]->buffer_bytes(), ranks[1]->buffer_bytes());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ranks[0]->buffer_bytes() == 0 ? 7 : 1);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "%d", status);
}

// Only memory of the right size that cannot shrink is taken.
void test_memory_that_is_refused() {
  SharedMemory good = SharedMemory::make(kSlot, 2);
  CHECK(good.valid());
  struct stat status;
  CHECK(::fstat(good.fd().get(), &status) == 0);
  const auto made = [&](off_t bytes, int seals) {
    Fd fd = Fd::memory("gcomm-test");
    CHECK(::ftruncate(fd.get(), bytes) == 0);
    if (seals != 0) CHECK(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(SharedMemory::take(made(status.st_size, F_SEAL_SHRINK), kSlot, 2).valid());
  CHECK(!SharedMemory::take(made(status.st_size, 0), kSlot, 2).valid());
  CHECK(!SharedMemory::take(made(status.st_size, F_SEAL_GROW), kSlot, 2).valid());
  CHECK(!SharedMemory::take(made(status.st_size - 1, F_SEAL_SHRINK), kSlot, 2).valid());
  CHECK(!SharedMemory::take(made(status.st_size, F_SEAL_SHRINK), 2 * kSlot, 2).valid());
  CHECK(!SharedMemory::take(made(status.st_size, F_SEAL_SHRINK), kSlot, 200).valid());
  CHECK(!SharedMemory::take(Fd::event(), kSlot, 2).valid());
  CHECK(!SharedMemory::take(Fd(), kSlot, 2).valid());
}

// Rank 1 of 2, by hand: it knows the token, passes memory on, and then does as it likes.
class Rogue {
 public:
  explicit Rogue(const std::string& address) : memory_(SharedMemory::make(kSlot, 2)) {
    const Fd local = gcomm::tcp::connect_locally(address);
    CHECK(local.valid());
    const auto greeting = hello(gcomm::tcp::kMemoryConnection);
    CHECK(gcomm::tcp::send_with_fd(local, &greeting, sizeof greeting, memory_.fd()));
    gcomm::tcp::Answer answer{};
    while (::recv(local.get(), &answer, sizeof answer, 0) < 0) ::usleep(1000);
    CHECK(answer.verdict == gcomm::tcp::Verdict::kWelcome);
    const auto target = gcomm::tcp::parse_address(address, "address");
    for (std::uint32_t c = 0; c < gcomm::tcp::kConnections; ++c) {
      const int fd = ::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
      CHECK(::connect(fd, target.get(), target.length) == 0);
      const auto mine = hello(c);
      say(fd, &mine, sizeof mine);
      connections_.push_back(fd);
    }
  }
  ~Rogue() {
    for (const int fd : connections_) ::close(fd);
  }

  RingPlace outgoing() const { return memory_.ring(Lane::kCollective, RingEnd::kMaker); }
  RingPlace incoming() const { return memory_.ring(Lane::kCollective, RingEnd::kTaker); }
  void ring_bell() { say(connections_[0], "b", 1); }
  // A message, or the beginning of one.
  void write(std::uint32_t length, std::uint32_t check, std::size_t payload) {
    const gcomm::tcp::FrameHeader header{length, check};
    std::vector<std::byte> bytes(payload);
    const iovec parts[2] = {{const_cast<gcomm::tcp::FrameHeader*>(&header), sizeof header},
                            {bytes.data(), bytes.size()}};
    gcomm::tcp::RingWriter(outgoing()).write(parts, 2);
    ring_bell();
  }

  static gcomm::tcp::Hello hello(std::uint32_t connection, std::uint32_t shares_memory = 1) {
    return {gcomm::tcp::kHelloMagic,
            gcomm::tcp::kProtocolVersion,
            1,
            0,
            connection,
            2,
            shares_memory,
            kSlot,
            kToken};
  }
  static void say(int fd, const void* data, std::size_t bytes) { (void)!::send(fd, data, bytes, MSG_NOSIGNAL); }

 private:
  SharedMemory memory_;
  std::vector<int> connections_;
};

void test_rogues() {
  using Misdeed = void (*)(std::unique_ptr<Rogue>&);
  const std::string nonsense = "rank 1 was lost: what came from it on lane 0 is not a message";
  const std::string lost = "rank 1 was lost: its process ended or its connection broke";
  const struct {
    const char* name;
    Misdeed misdeed;
    Code code;
    std::string text;
  } kCases[] = {
      {"written too far",
       [](auto& rogue) {
         rogue->outgoing().control->written = ~std::uint64_t{0} / 2;
         rogue->ring_bell();
       },
       Code::kPeerLost, nonsense},
      {"read what was not written",
       [](auto& rogue) {
         rogue->incoming().control->read = 1'000'000'000;
         rogue->ring_bell();
       },
       Code::kPeerLost, nonsense},
      {"no frame", [](auto& rogue) { rogue->write(10, 12345, 10); }, Code::kPeerLost, nonsense},
      {"too long for the receive",
       [](auto& rogue) { rogue->write(5000, gcomm::tcp::frame_check(5000, 0), 5000); }, Code::kMismatch,
       "rank 0: a message of 5000 bytes from rank 1 on lane 0 does not fit the 4096 bytes posted for it"},
      {"ends within a message",
       [](auto& rogue) {
         rogue->write(4000, gcomm::tcp::frame_check(4000, 0), 2000);
         rogue.reset();
       },
       Code::kPeerLost, lost},
      {"bells without end, and no message",
       [](auto& rogue) {
         for (int i = 0; i < 100'000; ++i) rogue->ring_bell();
       },
       Code::kTimeout, "rank 0 timed out waiting for rank 1"},
  };
  for (const auto& [name, misdeed, code, text] : kCases) {
    TcpListener listener("127.0.0.1");
    const std::vector<std::string> addresses = {listener.address(), "127.0.0.1:9"};
    std::unique_ptr<Rogue> rogue;
    std::thread other([&] { rogue = std::make_unique<Rogue>(addresses[0]); });
    const auto transport = gcomm::make_tcp(listener, 0, 2, addresses, kToken, kSlot, in_seconds(20));
    other.join();
    CHECK(transport->medium(1) == std::string("shm"));
    std::vector<unsigned char> in(4096), out(kSlot);
    // More than the ring holds, so that the sender looks at what the reader says.
    std::vector<TransportOp> ops(4, send_op(1, out.data(), out.size()));
    ops.push_back(recv_op(1, in.data(), in.size()));
    std::vector<Ticket> tickets(ops.size());
    transport->post(ops.data(), ops.size(), tickets.data());
    std::thread culprit([&, act = misdeed] { act(rogue); });
    const double seconds = code == Code::kTimeout ? 1 : 20;
    const auto error =
        failure_of([&] { transport->wait_all(&tickets.back(), 1, nullptr, in_seconds(seconds)); });
    culprit.join();
    CHECK(error && error->code() == code && error->peer() == 1 && error->what() == text, "%s: %s", name,
          error ? error->what() : "no failure");
  }
}

// Who says that memory is shared must have passed it.
void test_memory_that_never_came() {
  TcpListener listener("127.0.0.1");
  const auto target = gcomm::tcp::parse_address(listener.address(), "address");
  const int fd = ::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(::connect(fd, target.get(), target.length) == 0);
  const auto greeting = Rogue::hello(gcomm::tcp::kControlConnection);
  Rogue::say(fd, &greeting, sizeof greeting);
  std::thread rank([&] {
    (void)failure_of([&] {
      gcomm::make_tcp(listener, 0, 2, {listener.address(), "127.0.0.1:9"}, kToken, kSlot, in_seconds(1));
    });
  });
  gcomm::tcp::Answer answer{};
  CHECK(::recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer);
  CHECK(answer.verdict == gcomm::tcp::Verdict::kNoMemory);
  ::close(fd);
  rank.join();
}

// Strangers at the local name: silent, talking nonsense, without the token, without memory.
void test_local_strangers() {
  std::vector<TcpListener> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < 2; ++r) addresses.push_back(listeners.emplace_back("127.0.0.1").address());
  std::vector<Fd> strangers;
  const auto come = [&](const void* data, std::size_t bytes) {
    strangers.push_back(gcomm::tcp::connect_locally(addresses[0]));
    CHECK(strangers.back().valid());
    if (bytes > 0) Rogue::say(strangers.back().get(), data, bytes);
  };
  for (int i = 0; i < 300; ++i) come("", 0);
  come("GET / HTTP/1.1\r\n\r\n", 18);
  auto greeting = Rogue::hello(gcomm::tcp::kMemoryConnection);
  come(&greeting, sizeof greeting);  // no memory comes with it
  const Fd without_memory = std::move(strangers.back());
  greeting.token = {};
  come(&greeting, sizeof greeting);
  Ranks ranks(2);
  const auto thrown = in_threads(2, [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    ranks[i] = gcomm::make_tcp(listeners[i], r, 2, addresses, kToken, kSlot, in_seconds(20));
  });
  for (const auto& error : thrown) CHECK(!error, "%s", error->what());
  gcomm::tcp::Answer answer{};
  CHECK(::recv(without_memory.get(), &answer, sizeof answer, 0) == sizeof answer &&
        answer.verdict == gcomm::tcp::Verdict::kNoMemory);
  CHECK(ranks[0] && ranks[0]->medium(1) == std::string("shm"));
  CHECK(!gcomm::tcp::connect_locally(addresses[0]).valid());  // nobody listens any more
}

}  // namespace

int main() {
  test_mixed_world();
  test_memory_that_is_refused();
  test_rogues();
  test_memory_that_never_came();
  test_local_strangers();
  return check::report("transport_tcp_shared_memory");
}
