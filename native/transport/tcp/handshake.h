// The first bytes on every connection: the connecting rank's hello and the accepting rank's answer.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "transport/tcp/tcp.h"
#include "transport/transport.h"

namespace gcomm::tcp {

static_assert(std::endian::native == std::endian::little, "hellos and frames are little-endian");

inline constexpr std::uint64_t kHelloMagic = 0x314F4C4C45484347;  // "GCHELLO1"
// Another one, so that a socket that the system happened to connect to itself does not look like an answer.
inline constexpr std::uint64_t kAnswerMagic = 0x315245574E414347;  // "GCANWER1"
inline constexpr std::uint32_t kProtocolVersion = 2;
// Connections of a pair: the lanes, then control.
inline constexpr std::uint32_t kControlConnection = kLaneCount;
inline constexpr std::uint32_t kConnections = kLaneCount + 1;
// Before these, within a host, a local one that passes the shared memory and ends.
inline constexpr std::uint32_t kMemoryConnection = kConnections;

struct Hello {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t rank;
  std::uint32_t target;  // the rank it means to reach
  std::uint32_t connection;
  std::uint32_t size;
  std::uint32_t shares_memory;  // on control: 1 if the memory that was passed is to be used
  std::uint64_t slot;
  TcpToken token;
};
static_assert(sizeof(Hello) == 56);

enum class Verdict : std::uint32_t {
  kWelcome = 0,
  kWrongToken = 1,
  kWrongVersion = 2,
  kWrongRank = 3,  // not the rank that was meant, or not one that connects to it
  kWrongSize = 4,
  kWrongSlot = 5,
  kTaken = 6,     // this connection of this rank exists already
  kNoMemory = 7,  // the memory cannot be used, or is said to be used and never came
};

struct Answer {
  std::uint64_t magic;
  std::uint32_t version;
  Verdict verdict;
  std::uint32_t rank;
  std::uint32_t size;
  std::uint64_t slot;
};
static_assert(sizeof(Answer) == 32);

// Takes as long wherever the first difference is.
inline bool same_token(const TcpToken& a, const TcpToken& b) {
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

}  // namespace gcomm::tcp
