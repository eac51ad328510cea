// What lies between a message's header and its end: pieces of tensors, encoded or as they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "collective/call.h"
#include "collective/exchange.h"

namespace gcomm::collective {

// How the elements of a part of a call travel.
struct Coding {
  const codec::BlockCodec* block = nullptr;  // null: as they are
  DType dtype = DType::kF32;
  std::size_t item = 4;  // bytes of an element
  bool zero = false;     // as they are, but for nonfinite=zero: what is moved and not summed

  Coding() = default;
  Coding(const codec::BlockCodec* b, DType d) : block(b), dtype(d), item(dtype_size(d)) {}

  bool raw() const noexcept { return block == nullptr; }
  bool has_table() const noexcept { return !raw() && !block->fixed_length(); }
  std::size_t bound(std::uint64_t count) const {
    return raw() ? static_cast<std::size_t>(count) * item : block->max_encoded_bytes(count);
  }
  std::size_t granule() const { return raw() ? codec::kTile : block->granule(); }
  std::size_t table_bytes(std::size_t pieces) const noexcept {
    return has_table() ? pieces * sizeof(std::uint32_t) : 0;
  }
};

inline const std::uint8_t* at(const void* base, std::uint64_t element, std::size_t item) {
  return static_cast<const std::uint8_t*>(base) + element * item;
}
inline std::uint8_t* at(void* base, std::uint64_t element, std::size_t item) {
  return static_cast<std::uint8_t*>(base) + element * item;
}

// The coding that a writer or reader is made with says how the message is marked. use() changes it for the
// pieces that follow, to another one of fixed length.
class PayloadWriter {
 public:
  // pieces: how many will be added in the first coding. prefix: bytes left free at the beginning for something
  // else.
  PayloadWriter(const Coding& coding, std::uint8_t* payload, std::size_t capacity, std::size_t pieces,
                std::size_t prefix = 0);

  void use(const Coding& coding) noexcept { coding_ = &coding; }

  // `count` elements from src, through map if there is one. position: their place in the tensor, in its random
  // stream and in its residual.
  void add(const TensorArg& tensor, const void* src, std::uint64_t count, std::uint64_t position,
           const codec::TileMap* map = nullptr);

  // The same of what is encoded already, from the tensor's beginning, in a coding of fixed length.
  void add_encoded(const std::uint8_t* wire, std::uint64_t count, std::uint64_t position);

  // For whoever encodes into the payload himself: where, how much fits, and what it came to.
  std::uint8_t* next() noexcept { return payload_ + bytes_; }
  std::size_t left() const noexcept { return capacity_ - bytes_; }
  void added(std::size_t bytes, std::uint64_t count);
  void saw_nonfinite(bool nonfinite) noexcept { nonfinite_ = nonfinite_ || nonfinite; }
  bool nonfinite() const noexcept { return nonfinite_; }

  // Complete but for what the exchange fills in.
  Header header(std::uint8_t phase, std::uint32_t chunk) const;

 private:
  const Coding* coding_;
  const bool raw_;
  const bool has_table_;
  const bool has_crc_;
  std::uint8_t* payload_;
  std::size_t capacity_;
  std::uint8_t* table_;
  std::size_t bytes_;
  std::uint64_t count_ = 0;
  bool nonfinite_ = false;
};

class PayloadReader {
 public:
  // Throws kPeerLost if the message is not coded so, kCodec if its length table is broken.
  PayloadReader(const Coding& coding, const Incoming& message, std::size_t pieces, std::size_t prefix = 0);

  void use(const Coding& coding) noexcept { coding_ = &coding; }

  // The next piece, of count elements. Throws kCodec if it is not all there.
  codec::Encoded next(std::uint64_t count);
  // total_bytes: of the whole output that dst is a piece of.
  void decode_next(void* dst, std::uint64_t count, std::uint64_t total_bytes = 0);
  // Throws kCodec if something is left over.
  void done() const;

 private:
  [[noreturn]] void broken(const char* what) const;

  const Coding* coding_;
  const std::uint8_t* table_;
  const std::uint8_t* data_;
  std::size_t left_;
  int peer_;
};

// Whether src holds a NaN or an Inf. Only for the dtypes that codecs take.
bool has_nonfinite(const void* src, DType dtype, std::uint64_t count);

}  // namespace gcomm::collective
