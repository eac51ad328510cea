#include "collective/header.h"

#include <bit>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "base/error.h"

namespace gcomm::collective {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written as they lie in memory");

constexpr std::size_t kCrcOffset = 44;

template <typename T>
void put(std::uint8_t* out, std::size_t offset, T value) noexcept {
  std::memcpy(out + offset, &value, sizeof value);
}

template <typename T>
T get(const std::uint8_t* in, std::size_t offset) noexcept {
  T value;
  std::memcpy(&value, in + offset, sizeof value);
  return value;
}

[[noreturn]] void broken(int peer, const std::string& what) {
  throw Error(Code::kPeerLost, "rank " + std::to_string(peer) + " sent a broken message: " + what, peer);
}

}  // namespace

void write_header(const Header& header, std::uint8_t* out) noexcept {
  put(out, 0, kMagic);
  put(out, 4, kWireVersion);
  put(out, 5, static_cast<std::uint8_t>(header.kind));
  put(out, 6, header.flags);
  put(out, 8, static_cast<std::uint32_t>(header.source));
  put(out, 12, header.payload_crc);
  put(out, 16, header.sequence);
  put(out, 24, header.payload_bytes);
  put(out, 28, header.count);
  put(out, 32, header.hash);
  put(out, 40, static_cast<std::uint32_t>(header.phase) << 24 | header.chunk);
  put(out, kCrcOffset, crc32c(out, kCrcOffset));
}

Header parse_header(const std::uint8_t* message) noexcept {
  Header header;
  header.kind = static_cast<Kind>(get<std::uint8_t>(message, 5));
  header.flags = get<std::uint16_t>(message, 6);
  header.source = static_cast<int>(get<std::uint32_t>(message, 8));
  header.payload_crc = get<std::uint32_t>(message, 12);
  header.sequence = get<std::uint64_t>(message, 16);
  header.payload_bytes = get<std::uint32_t>(message, 24);
  header.count = get<std::uint32_t>(message, 28);
  header.hash = get<std::uint64_t>(message, 32);
  const auto part = get<std::uint32_t>(message, 40);
  header.phase = static_cast<std::uint8_t>(part >> 24);
  header.chunk = part & kMaxChunk;
  return header;
}

Header read_header(const std::uint8_t* message, std::size_t bytes, std::size_t capacity, int peer) {
  if (bytes < kHeaderBytes) broken(peer, std::to_string(bytes) + " bytes are less than a header");
  if (get<std::uint32_t>(message, 0) != kMagic) broken(peer, "wrong magic number");
  if (get<std::uint32_t>(message, kCrcOffset) != crc32c(message, kCrcOffset)) {
    broken(peer, "the header fails its CRC");
  }
  if (const int version = get<std::uint8_t>(message, 4); version != kWireVersion) {
    broken(peer,
           "wire format version " + std::to_string(version) + ", expected " + std::to_string(kWireVersion));
  }
  const Header header = parse_header(message);
  const int kind = static_cast<int>(header.kind);
  if (kind < 1 || kind > 4) broken(peer, "unknown kind " + std::to_string(kind));
  if (header.source != peer) broken(peer, "it says that it comes from rank " + std::to_string(header.source));
  const std::size_t there = bytes - kHeaderBytes;
  if (header.payload_bytes > there || (bytes < capacity && header.payload_bytes < there)) {
    broken(peer, "it promises " + std::to_string(header.payload_bytes) + " payload bytes and brings " +
                     std::to_string(there));
  }
  if (header.has(kFlagPayloadCrc) &&
      header.payload_crc != crc32c(message + kHeaderBytes, header.payload_bytes)) {
    throw Error(Code::kCodec, "a payload from rank " + std::to_string(peer) + " fails its CRC", peer);
  }
  return header;
}

}  // namespace gcomm::collective
