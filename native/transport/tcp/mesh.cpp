#include "transport/tcp/mesh.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <string>

#include "transport/failures.h"
#include "transport/tcp/handshake.h"

namespace gcomm::tcp {
namespace {

// Connections whose hello has not arrived. More than this many at a time can only be strangers: the oldest go.
constexpr std::size_t kMaxUnknown = 256;
constexpr std::chrono::milliseconds kRetryPause{20};

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

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
  std::size_t got = 0;
  std::array<char, sizeof(Hello)> hello;
};

// Everything in one thread: connections in every stage are polled together, so that none can hold up another.
class MeshBuilder {
 public:
  MeshBuilder(const Fd& listener, const MeshSetup& setup, Deadline deadline)
      : listener_(listener), setup_(setup), deadline_(deadline), started_(Clock::now()) {
    mesh_.peers.resize(static_cast<std::size_t>(setup.size));
    for (int p = 0; p < setup.size; ++p) {
      const std::string what = "addresses[" + std::to_string(p) + "]";
      const SocketAddress address = parse_address(setup.addresses[static_cast<std::size_t>(p)], what);
      for (std::uint32_t c = 0; c < kConnections && p < setup.rank; ++c) {
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
          if (out.step == Outgoing::Step::kIdle && Clock::now() >= out.retry_at) start(out);
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
  void accept_all();
  void start(Outgoing& out);
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
  Verdict verdict(const Hello& hello) const;
  void check_fellow(const Hello& hello, Verdict verdict) const;
  [[noreturn]] void throw_missing();

  const Fd& listener_;
  const MeshSetup& setup_;
  const Deadline deadline_;
  const Clock::time_point started_;
  Mesh mesh_;
  std::size_t missing_ = 0;  // connections
  std::list<Outgoing> outgoing_;
  std::list<Incoming> incoming_;
};

void MeshBuilder::poll_once() {
  std::vector<pollfd> fds;
  std::vector<Outgoing*> outs;
  std::vector<std::list<Incoming>::iterator> ins;
  fds.push_back({listener_.get(), POLLIN, 0});
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
    if (fds[1 + i].revents != 0) advance(*outs[i]);
  }
  for (std::size_t i = 0; i < ins.size(); ++i) {
    if (fds[1 + outs.size() + i].revents != 0 && !advance(*ins[i])) incoming_.erase(ins[i]);
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (fds[first_control + i].revents != 0) listen_to(peers[i]);
  }
  if (fds[0].revents != 0) accept_all();
}

// A peer may be through with its set-up, or even with the communicator, before this rank is.
void MeshBuilder::listen_to(int peer) {
  ControlSocket& control = *mesh_.peers[static_cast<std::size_t>(peer)].control;
  const ControlSocket::News news = control.receive();
  if (news.notice) throw Error(*news.notice);
  if (news.ended && !control.peer_said_goodbye()) throw peer_lost(peer);
}

void MeshBuilder::accept_all() {
  for (int i = 0; i < 64 && missing_ > 0; ++i) {
    Incoming in;
    in.fd = Fd::accept(listener_);
    if (!in.fd.valid()) {
      if ((errno == EMFILE || errno == ENFILE) && !incoming_.empty()) {
        incoming_.pop_front();
        continue;
      }
      return;
    }
    incoming_.push_back(std::move(in));
    // A fellow rank's hello is mostly here already: it need not wait among the unknown.
    if (!advance(incoming_.back())) incoming_.pop_back();
    if (incoming_.size() > kMaxUnknown) incoming_.pop_front();
  }
}

// False when the connection has left the unknown, welcomed or turned away.
bool MeshBuilder::advance(Incoming& in) {
  const long n = ::recv(in.fd.get(), in.hello.data() + in.got, in.hello.size() - in.got, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  in.got += static_cast<std::size_t>(n);
  std::uint64_t magic = 0;
  std::memcpy(&magic, in.hello.data(), std::min(in.got, sizeof magic));
  if (std::memcmp(&magic, &kHelloMagic, std::min(in.got, sizeof magic)) != 0) return false;
  if (in.got < in.hello.size()) return true;

  Hello hello;
  std::memcpy(&hello, in.hello.data(), sizeof hello);
  const Verdict found = verdict(hello);
  const Answer answer{kAnswerMagic,
                      kProtocolVersion,
                      found,
                      static_cast<std::uint32_t>(setup_.rank),
                      static_cast<std::uint32_t>(setup_.size),
                      setup_.slot};
  const bool sent =
      ::send(in.fd.get(), &answer, sizeof answer, MSG_NOSIGNAL) == static_cast<long>(sizeof answer);
  check_fellow(hello, found);
  if (sent && found == Verdict::kWelcome)
    settle(static_cast<int>(hello.rank), hello.connection, std::move(in.fd));
  return false;
}

Verdict MeshBuilder::verdict(const Hello& hello) const {
  if (hello.version != kProtocolVersion) return Verdict::kWrongVersion;
  if (!same_token(hello.token, setup_.token)) return Verdict::kWrongToken;
  if (hello.size != static_cast<std::uint32_t>(setup_.size)) return Verdict::kWrongSize;
  if (hello.slot != setup_.slot) return Verdict::kWrongSlot;
  if (hello.target != static_cast<std::uint32_t>(setup_.rank) || hello.rank <= hello.target ||
      hello.rank >= hello.size || hello.connection >= kConnections) {
    return Verdict::kWrongRank;
  }
  return is_connected(static_cast<int>(hello.rank), hello.connection) ? Verdict::kTaken : Verdict::kWelcome;
}

// Who knows the token is no stranger: a disagreement with it is this rank's failure too.
void MeshBuilder::check_fellow(const Hello& hello, Verdict found) const {
  const std::string me = rank_name(setup_.rank);
  const std::string other = "rank " + std::to_string(hello.rank);
  const int culprit = hello.rank < static_cast<std::uint32_t>(setup_.size) ? static_cast<int>(hello.rank) : -1;
  switch (found) {
    case Verdict::kWrongSize:
      throw Error(Code::kInvalid,
                  "size: " + other + " was created with " + std::to_string(hello.size) + " ranks, " + me +
                      " with " + std::to_string(setup_.size),
                  culprit);
    case Verdict::kWrongSlot:
      throw Error(Code::kInvalid,
                  "slot: " + other + " was created with " + std::to_string(hello.slot) + " bytes, " + me +
                      " with " + std::to_string(setup_.slot),
                  culprit);
    case Verdict::kTaken:
      throw Error(Code::kInvalid, "rank: two processes are " + other, culprit);
    default:
      return;
  }
}

void MeshBuilder::start(Outgoing& out) {
  out.fd = Fd::stream_socket(out.address.family());
  if (!out.fd.valid()) throw Error(Code::kInternal, rank_name(setup_.rank) + ": socket: " + errno_text(errno));
  out.step = Outgoing::Step::kConnecting;
  if (::connect(out.fd.get(), out.address.get(), out.address.length) == 0) {
    connected(out);
  } else if (errno != EINPROGRESS) {
    refused(out, errno);
  }
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

void MeshBuilder::connected(Outgoing& out) {
  const Hello hello{kHelloMagic,
                    kProtocolVersion,
                    static_cast<std::uint32_t>(setup_.rank),
                    static_cast<std::uint32_t>(out.peer),
                    out.connection,
                    static_cast<std::uint32_t>(setup_.size),
                    0,
                    setup_.slot,
                    setup_.token};
  if (::send(out.fd.get(), &hello, sizeof hello, MSG_NOSIGNAL) != static_cast<long>(sizeof hello))
    return retry(out);
  out.step = Outgoing::Step::kAnswering;
}

void MeshBuilder::judge(Outgoing& out) {
  Answer answer;
  std::memcpy(&answer, out.answer.data(), sizeof answer);
  const std::string me = rank_name(setup_.rank);
  const std::string other = rank_name(out.peer) + " at " + format_address(out.address);
  std::string problem;
  if (answer.magic != kAnswerMagic) {
    problem = "addresses: " + me + " found something that is not gcomm at " + other;
  } else {
    switch (answer.verdict) {
      case Verdict::kWelcome:
        out.step = Outgoing::Step::kDone;
        settle(out.peer, out.connection, std::move(out.fd));
        return;
      case Verdict::kWrongToken:
        problem = "token: " + other + " has another token than " + me;
        break;
      case Verdict::kWrongVersion:
        problem = "version: " + other + " speaks version " + std::to_string(answer.version) +
                  " of gcomm's connections, " + me + " version " + std::to_string(kProtocolVersion);
        break;
      case Verdict::kWrongSize:
        problem = "size: " + other + " was created with " + std::to_string(answer.size) + " ranks, " + me +
                  " with " + std::to_string(setup_.size);
        break;
      case Verdict::kWrongSlot:
        problem = "slot: " + other + " was created with " + std::to_string(answer.slot) + " bytes, " + me +
                  " with " + std::to_string(setup_.slot);
        break;
      case Verdict::kTaken:
        problem = "rank: two processes are " + me;
        break;
      default:
        problem = "addresses: " + me + " expected " + other + ", which says it is rank " +
                  std::to_string(answer.rank);
    }
  }
  throw Error(Code::kInvalid, problem, out.peer);
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

Mesh connect_mesh(const Fd& listener, const MeshSetup& setup, Deadline deadline) {
  return MeshBuilder(listener, setup, deadline).build();
}

}  // namespace gcomm::tcp
