// What is said at the rendezvous: the server's banner, a client's claim, the server's reply. Little-endian.
#pragma once

#include <array>
#include <cstdint>

#include "transport/tcp/handshake.h"

namespace gcomm::tcp {

inline constexpr std::uint64_t kRendezvousMagic = 0x3156445A52434347;  // "GCCRZDV1"
inline constexpr std::size_t kAddressText = 128;                       // an address with its final NUL

struct Banner {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t port;  // MASTER_PORT, not where it was served: another job's ports may overlap
};
static_assert(sizeof(Banner) == 16);

struct Claim {
  std::uint64_t magic;
  std::uint32_t rank;
  std::uint32_t size;
  std::array<char, kAddressText> address;
};
static_assert(sizeof(Claim) == 144);

// Followed by `bytes` bytes: the token and `size` address texts of kAddressText bytes, or an error's text.
struct Reply {
  std::uint64_t magic;
  std::uint32_t code;  // 0, or a Code
  std::int32_t culprit;
  std::uint32_t bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(Reply) == 24);

}  // namespace gcomm::tcp
