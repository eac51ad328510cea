// The connection beside the lanes on which a peer says goodbye or why the communicator broke, and is asked,
// after a deadline, whether it waits for others itself. Nothing is ever queued on it behind data, so it can be
// read at once and written without waiting.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "transport/failures.h"
#include "transport/tcp/socket.h"
#include "transport/transport.h"

namespace gcomm::tcp {

class ControlSocket {
 public:
  explicit ControlSocket(Fd fd) : fd_(std::move(fd)) {}

  const Fd& fd() const noexcept { return fd_; }
  void close() noexcept { fd_.close(); }

  void send_goodbye() noexcept;
  void send_notice(const Error& why) noexcept;
  void ask_if_waiting(Lane lane) noexcept;
  void answer_waiting() noexcept;

  // Reads all there is.
  struct News {
    // The peer's, also if it came with an earlier call: of two threads that read at once the one that finds the
    // connection's end must not take the peer for lost while the other has the reason in its hands.
    std::optional<Error> notice;
    std::optional<Lane> asked;  // on which lane the peer wants to know whether this rank waits
    bool ended = false;         // the connection is over, or carries nonsense
  };
  News receive();

  bool peer_said_goodbye() const noexcept { return goodbye_.load(std::memory_order_acquire); }
  bool peer_waits_itself() const noexcept { return waits_.load(std::memory_order_acquire); }

 private:
  struct Header {
    std::uint32_t magic;
    std::uint8_t kind;
    std::uint8_t code;  // of a notice; of a question, the lane
    std::uint16_t text_bytes;
    std::int32_t culprit;
  };
  static_assert(sizeof(Header) == 12);
  static constexpr std::uint32_t kMagic = 0x63676D43;
  enum Kind : std::uint8_t { kGoodbye = 1, kNotice = 2, kQuestion = 3, kWaiting = 4 };

  void send(const Header& header, const char* text) noexcept;
  bool read(std::optional<Lane>& asked);

  Fd fd_;
  std::mutex send_mutex_;
  std::mutex receive_mutex_;
  std::atomic<bool> goodbye_{false};
  std::atomic<bool> waits_{false};  // the answer to this rank's last question
  std::optional<Error> notice_;
  std::size_t held_ = 0;
  std::array<char, sizeof(Header) + kMaxFailureText> buffer_;
};

}  // namespace gcomm::tcp
