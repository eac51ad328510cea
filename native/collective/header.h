// The 48 bytes in front of every message (docs/wire-format.md, section 3).
#pragma once

#include <cstddef>
#include <cstdint>

namespace gcomm::collective {

inline constexpr std::size_t kHeaderBytes = 48;
inline constexpr std::uint32_t kMagic = 0x314D4347u;  // "GCM1"
inline constexpr std::uint8_t kWireVersion = 1;

enum class Kind : std::uint8_t {
  kData = 1,
  kHeaderOnly = 2,    // nothing to send to this peer, or only flags
  kDisagreement = 3,  // the sender's own call in words
  kAck = 4,           // the receiver of a point-to-point message has it
};

inline constexpr std::uint16_t kFlagRaw = 1;
inline constexpr std::uint16_t kFlagNonFinite = 2;
inline constexpr std::uint16_t kFlagPayloadCrc = 4;
inline constexpr std::uint16_t kFlagLengthTable = 8;

struct Header {
  Kind kind = Kind::kData;
  std::uint16_t flags = 0;
  int source = 0;
  std::uint32_t payload_crc = 0;
  std::uint64_t sequence = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t count = 0;
  std::uint64_t hash = 0;
  std::uint8_t phase = 0;
  std::uint32_t chunk = 0;  // 24 bits

  bool has(std::uint16_t flag) const noexcept { return (flags & flag) != 0; }
};

inline constexpr std::uint32_t kMaxChunk = (1u << 24) - 1;

void write_header(const Header& header, std::uint8_t* out) noexcept;

// The fields as they are, unchecked: of a message that this process wrote.
Header parse_header(const std::uint8_t* message) noexcept;

// Reads and checks what does not depend on the call: magic, version, header CRC, source, lengths, payload CRC.
// bytes is what arrived, header included; where it equals capacity, the transport may not have known better.
// Throws Error(kPeerLost) that names the peer: what talks there is not a gcomm rank in its right mind; a
// payload that fails its CRC is Error(kCodec).
Header read_header(const std::uint8_t* message, std::size_t bytes, std::size_t capacity, int peer);

}  // namespace gcomm::collective
