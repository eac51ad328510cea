#include "transport/tcp/mesh.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <string>

#include "transport/failures.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/local_connection.h"
#include "transport/tcp/mesh_failures.h"

namespace gcomm::tcp {
namespace {

// Connections whose hello has not arrived. More than this many at a time can only be strangers: the oldest go.
constexpr std::size_t kMaxUnknown = 256;
constexpr std::chrono::milliseconds kRetryPause{20};

struct Outgoing {
  int peer = 0;
  std::uint32_t connection = 0;
  SocketAddress address;
  Fd fd;
  enum class Step { kIdle, kConnecting, kAnswering, kDone } step = Step::kIdle;
  Clock::time_point retry_at{};
  std::size_t got = 0;
  std::array<char, sizeof(Answer)> answer;
};

struct Incoming {
  Fd fd;
  bool local = false;  // came through the local listener
  Fd passed;           // a descriptor that came with the hello
  std::size_t got = 0;
  std::array<char, sizeof(Hello)> hello;
};

// Everything in one thread: connections in every stage are polled together, so that none can hold up another.
class MeshBuilder {
 public:
  MeshBuilder(const MeshSetup& setup, Deadline deadline)
      : setup_(setup), deadline_(deadline), started_(Clock::now()) {
    mesh_.peers.resize(static_cast<std::size_t>(setup.size));
    asks_for_memory_.resize(mesh_.peers.size());
    for (int p = 0; p < setup.size; ++p) {
      const std::string what = "addresses[" + std::to_string(p) + "]";
      const SocketAddress address = parse_address(setup.addresses[static_cast<std::size_t>(p)], what);
      if (p >= setup.rank) continue;
      const bool asks = setup.local_listener.valid();
      asks_for_memory_[static_cast<std::size_t>(p)] = asks;
      for (std::uint32_t c = 0; c < kConnections + (asks ? 1 : 0); ++c) {
        Outgoing& out = outgoing_.emplace_back();
        out.peer = p;
        out.connection = c;
        out.address = address;
      }
    }
    missing_ = static_cast<std::size_t>(setup.size - 1) * kConnections;
  }

  Mesh build() {
    try {
      while (missing_ > 0) {
        if (Clock::now() >= deadline_) throw_missing();
        for (Outgoing& out : outgoing_) {
          if (out.step == Outgoing::Step::kIdle && Clock::now() >= out.retry_at && may_start(out)) start(out);
        }
        if (missing_ > 0) poll_once();
      }
    } catch (const Error& why) {
      // Ranks that are connected already need not wait for their deadline, or take this one for lost.
      for (const PeerSockets& peer : mesh_.peers) {
        if (peer.control != nullptr) peer.control->send_notice(why);
      }
      throw;
    }
    return std::move(mesh_);
  }

 private:
  bool is_connected(int peer, std::uint32_t connection) const {
    const PeerSockets& sockets = mesh_.peers[static_cast<std::size_t>(peer)];
    return connection == kControlConnection ? sockets.control != nullptr : sockets.lanes[connection].valid();
  }

  void settle(int peer, std::uint32_t connection, Fd fd) {
    PeerSockets& sockets = mesh_.peers[static_cast<std::size_t>(peer)];
    if (connection == kControlConnection) {
      sockets.control = std::make_unique<ControlSocket>(std::move(fd));
    } else {
      sockets.lanes[connection] = std::move(fd);
    }
    --missing_;
  }

  void listen_to(int peer);
  void poll_once();
  void accept_all(const Fd& listener, bool local);
  // Control says whether memory is shared, so it waits until that is known.
  bool may_start(const Outgoing& out) const {
    return out.connection != kControlConnection || !asks_for_memory_[static_cast<std::size_t>(out.peer)];
  }
  void start(Outgoing& out);
  void start_memory(Outgoing& out);
  void share_no_memory(Outgoing& out);
  void finish_memory(Outgoing& out);
  SharedMemory& memory_of(int peer) { return mesh_.peers[static_cast<std::size_t>(peer)].memory; }
  Hello hello_for(const Outgoing& out);
  void retry(Outgoing& out) {
    out.fd.close();
    out.step = Outgoing::Step::kIdle;
    out.got = 0;
    out.retry_at = Clock::now() + kRetryPause;
  }
  void advance(Outgoing& out);
  void refused(Outgoing& out, int error);
  void connected(Outgoing& out);
  void judge(Outgoing& out);
  bool advance(Incoming& in);
  Verdict verdict(const Hello& hello, bool local) const;
  Verdict welcome(const Hello& hello, Incoming& in);
  [[noreturn]] void throw_missing();

  const MeshSetup& setup_;
  const Deadline deadline_;
  const Clock::time_point started_;
  Mesh mesh_;
  std::size_t missing_ = 0;            // connections
  std::vector<bool> asks_for_memory_;  // by peer: its memory connection is under way
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;
};

void MeshBuilder::poll_once() {
  std::vector<pollfd> fds;
  std::vector<Outgoing*> outs;
  std::vector<std::list<Incoming>::iterator> ins;
  fds.push_back({setup_.listener.get(), POLLIN, 0});
  fds.push_back({setup_.local_listener.get(), POLLIN, 0});  // not looked at if invalid
  for (Outgoing& out : outgoing_) {
    if (!out.fd.valid()) continue;
    const bool connecting = out.step == Outgoing::Step::kConnecting;
    fds.push_back({out.fd.get(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
    outs.push_back(&out);
  }
  for (auto in = incoming_.begin(); in != incoming_.end(); ++in) {
    fds.push_back({in->fd.get(), POLLIN, 0});
    ins.push_back(in);
  }
  const std::size_t first_control = fds.size();
  std::vector<int> peers;
  for (int p = 0; p < setup_.size; ++p) {
    const ControlSocket* control = mesh_.peers[static_cast<std::size_t>(p)].control.get();
    if (control == nullptr || control->peer_said_goodbye()) continue;
    fds.push_back({control->fd().get(), POLLIN, 0});
    peers.push_back(p);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      std::min<Clock::duration>(deadline_ - Clock::now(), kRetryPause));
  if (::poll(fds.data(), fds.size(), static_cast<int>(std::max<long>(left.count(), 0))) <= 0) return;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (fds[2 + i].revents != 0) advance(*outs[i]);
  }
  for (std::size_t i = 0; i < ins.size(); ++i) {
    if (fds[2 + outs.size() + i].revents != 0 && !advance(*ins[i])) incoming_.erase(ins[i]);
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (fds[first_control + i].revents != 0) listen_to(peers[i]);
  }
  if (fds[0].revents != 0) accept_all(setup_.listener, false);
  if (fds[1].revents != 0) accept_all(setup_.local_listener, true);
}

// A peer may be through with its set-up, or even with the communicator, before this rank is.
void MeshBuilder::listen_to(int peer) {
  ControlSocket& control = *mesh_.peers[static_cast<std::size_t>(peer)].control;
  const ControlSocket::News news = control.receive();
  if (news.notice) throw Error(*news.notice);
  if (news.ended && !control.peer_said_goodbye()) throw peer_lost(peer);
}

void MeshBuilder::accept_all(const Fd& listener, bool local) {
  for (int i = 0; i < 64 && missing_ > 0; ++i) {
    Incoming in;
    in.fd = Fd::accept(listener);
    in.local = local;
    if (!in.fd.valid()) {
      if ((errno == EMFILE || errno == ENFILE) && !incoming_.empty()) {
        incoming_.pop_front();
        continue;
      }
      return;
    }
    if (local && !is_same_user(in.fd)) continue;
    incoming_.push_back(std::move(in));
    // A fellow rank's hello is mostly here already: it need not wait among the unknown.
    if (!advance(incoming_.back())) incoming_.pop_back();
    if (incoming_.size() > kMaxUnknown) incoming_.pop_front();
  }
}

// False when the connection has left the unknown, welcomed or turned away.
bool MeshBuilder::advance(Incoming& in) {
  long n = 0;
  Fd passed = Fd::receive(in.fd, in.hello.data() + in.got, in.hello.size() - in.got, &n);
  if (passed.valid()) in.passed = std::move(passed);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  in.got += static_cast<std::size_t>(n);
  std::uint64_t magic = 0;
  std::memcpy(&magic, in.hello.data(), std::min(in.got, sizeof magic));
  if (std::memcmp(&magic, &kHelloMagic, std::min(in.got, sizeof magic)) != 0) return false;
  if (in.got < in.hello.size()) return true;

  Hello hello;
  std::memcpy(&hello, in.hello.data(), sizeof hello);
  Verdict found = verdict(hello, in.local);
  if (found == Verdict::kWelcome) found = welcome(hello, in);
  const Answer answer{kAnswerMagic,
                      kProtocolVersion,
                      found,
                      static_cast<std::uint32_t>(setup_.rank),
                      static_cast<std::uint32_t>(setup_.size),
                      setup_.slot};
  const bool sent =
      ::send(in.fd.get(), &answer, sizeof answer, MSG_NOSIGNAL) == static_cast<long>(sizeof answer);
  check_fellow(setup_, hello, found);
  if (sent && found == Verdict::kWelcome && !in.local)
    settle(static_cast<int>(hello.rank), hello.connection, std::move(in.fd));
  return false;
}

// Takes the memory that a peer passes on, and leaves it again if the peer thought better of it.
Verdict MeshBuilder::welcome(const Hello& hello, Incoming& in) {
  SharedMemory& memory = memory_of(static_cast<int>(hello.rank));
  if (in.local) {
    memory = SharedMemory::take(std::move(in.passed), setup_.slot, setup_.size);
    memory.close_fd();
    return memory.valid() ? Verdict::kWelcome : Verdict::kNoMemory;
  }
  if (hello.connection == kControlConnection) {
    if (hello.shares_memory == 0) memory = {};
    if (hello.shares_memory != 0 && !memory.valid()) return Verdict::kNoMemory;
  }
  return Verdict::kWelcome;
}

Verdict MeshBuilder::verdict(const Hello& hello, bool local) const {
  if (hello.version != kProtocolVersion) return Verdict::kWrongVersion;
  if (!same_token(hello.token, setup_.token)) return Verdict::kWrongToken;
  if (hello.size != static_cast<std::uint32_t>(setup_.size)) return Verdict::kWrongSize;
  if (hello.slot != setup_.slot) return Verdict::kWrongSlot;
  if (hello.target != static_cast<std::uint32_t>(setup_.rank) || hello.rank <= hello.target ||
      hello.rank >= hello.size ||
      (local ? hello.connection != kMemoryConnection : hello.connection >= kConnections)) {
    return Verdict::kWrongRank;
  }
  const auto peer = static_cast<int>(hello.rank);
  const bool taken = local ? mesh_.peers[hello.rank].memory.valid() || is_connected(peer, kControlConnection)
                           : is_connected(peer, hello.connection);
  return taken ? Verdict::kTaken : Verdict::kWelcome;
}

void MeshBuilder::start(Outgoing& out) {
  if (out.connection == kMemoryConnection) return start_memory(out);
  out.fd = Fd::stream_socket(out.address.family());
  if (!out.fd.valid()) throw Error(Code::kInternal, rank_name(setup_.rank) + ": socket: " + errno_text(errno));
  out.step = Outgoing::Step::kConnecting;
  if (::connect(out.fd.get(), out.address.get(), out.address.length) == 0) {
    connected(out);
  } else if (errno != EINPROGRESS) {
    refused(out, errno);
  }
}

// Where nobody of this user listens at the peer's name, the peer is elsewhere or does not share memory.
void MeshBuilder::start_memory(Outgoing& out) {
  out.fd = connect_locally(setup_.addresses[static_cast<std::size_t>(out.peer)]);
  if (!out.fd.valid() && errno == EAGAIN) return retry(out);
  if (!out.fd.valid() || !is_same_user(out.fd)) return share_no_memory(out);
  memory_of(out.peer) = SharedMemory::make(setup_.slot, setup_.size);
  if (!memory_of(out.peer).valid()) return share_no_memory(out);
  const Hello hello = hello_for(out);
  if (!send_with_fd(out.fd, &hello, sizeof hello, memory_of(out.peer).fd())) {
    // Closed: it was crowded out by strangers. Whatever else it is, a system that passes no descriptors stays
    // so.
    return errno == EPIPE || errno == ECONNRESET || errno == EAGAIN ? retry(out) : share_no_memory(out);
  }
  out.step = Outgoing::Step::kAnswering;
}

void MeshBuilder::share_no_memory(Outgoing& out) {
  memory_of(out.peer) = {};
  finish_memory(out);
}

void MeshBuilder::finish_memory(Outgoing& out) {
  out.fd.close();
  out.step = Outgoing::Step::kDone;
  asks_for_memory_[static_cast<std::size_t>(out.peer)] = false;
}

// A peer's listener stands before its address is known, and closes with its communicator complete or failed:
// where nobody listens, nobody will.
void MeshBuilder::refused(Outgoing& out, int error) {
  if (error != ECONNREFUSED) return retry(out);
  throw Error(Code::kPeerLost,
              rank_name(setup_.rank) + ": " + rank_name(out.peer) + " at " + format_address(out.address) +
                  " ended before it was connected",
              out.peer);
}

void MeshBuilder::advance(Outgoing& out) {
  if (out.step == Outgoing::Step::kConnecting) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(out.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return refused(out, error);
    return connected(out);
  }
  const long n = ::recv(out.fd.get(), out.answer.data() + out.got, out.answer.size() - out.got, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // Closed without an answer: it was crowded out by strangers.
  if (n <= 0) return retry(out);
  out.got += static_cast<std::size_t>(n);
  if (out.got == out.answer.size()) judge(out);
}

Hello MeshBuilder::hello_for(const Outgoing& out) {
  return {kHelloMagic,
          kProtocolVersion,
          static_cast<std::uint32_t>(setup_.rank),
          static_cast<std::uint32_t>(out.peer),
          out.connection,
          static_cast<std::uint32_t>(setup_.size),
          memory_of(out.peer).valid() ? 1u : 0u,
          setup_.slot,
          setup_.token};
}

void MeshBuilder::connected(Outgoing& out) {
  const Hello hello = hello_for(out);
  if (::send(out.fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<long>(sizeof hello))
    return retry(out);
  out.step = Outgoing::Step::kAnswering;
}

void MeshBuilder::judge(Outgoing& out) {
  Answer answer;
  std::memcpy(&answer, out.answer.data(), sizeof answer);
  const bool is_memory = out.connection == kMemoryConnection;
  if (is_memory && answer.magic == kAnswerMagic && answer.verdict == Verdict::kNoMemory) {
    return share_no_memory(out);
  }
  if (answer.magic != kAnswerMagic || answer.verdict != Verdict::kWelcome) {
    throw refusal(setup_, answer, out.peer, format_address(out.address));
  }
  if (is_memory) {
    memory_of(out.peer).close_fd();
    return finish_memory(out);
  }
  out.step = Outgoing::Step::kDone;
  settle(out.peer, out.connection, std::move(out.fd));
}

void MeshBuilder::throw_missing() {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_).count();
  std::string seconds = std::to_string(waited / 1000) + "." + std::to_string(waited % 1000 / 100);
  std::string silent, absent;
  int culprit = -1;
  for (int p = 0; p < setup_.size; ++p) {
    bool complete = p == setup_.rank;
    for (std::uint32_t c = 0; c < kConnections && !complete; ++c) {
      if (is_connected(p, c)) continue;
      std::string& list = p < setup_.rank ? silent : absent;
      list += (list.empty() ? "" : ", ") + rank_name(p);
      if (p < setup_.rank) list += " at " + setup_.addresses[static_cast<std::size_t>(p)];
      if (culprit < 0) culprit = p;
      complete = true;
    }
  }
  std::string text = rank_name(setup_.rank) + ": ";
  if (!silent.empty()) text += "no answer from " + silent;
  if (!absent.empty()) text += (silent.empty() ? "no connection from " : " and no connection from ") + absent;
  throw Error(Code::kTimeout, text + " within " + seconds + " s", culprit);
}

}  // namespace

Mesh connect_mesh(const MeshSetup& setup, Deadline deadline) { return MeshBuilder(setup, deadline).build(); }

}  // namespace gcomm::tcp
