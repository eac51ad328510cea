#include "collective/payload.h"

#include <cstring>
#include <string>

#include "base/crc32c.h"

namespace gcomm::collective {

PayloadWriter::PayloadWriter(const Coding& coding, std::uint8_t* payload, std::size_t capacity,
                             std::size_t pieces, std::size_t prefix)
    : coding_(&coding),
      raw_(coding.raw()),
      has_table_(coding.has_table()),
      has_crc_(!coding.raw() && coding.block->spec().payload_crc),
      payload_(payload),
      capacity_(capacity),
      table_(payload + prefix),
      bytes_(prefix + coding.table_bytes(pieces)) {}

void PayloadWriter::add(const TensorArg& tensor, const void* src, std::uint64_t count, std::uint64_t position,
                        const codec::TileMap* map) {
  const Coding& coding = *coding_;
  if (coding.raw()) {
    if (coding.zero) {
      saw_nonfinite(codec::raw_reduce(&src, 1, coding.dtype, count, 1.0f, true, next(), codec::Isa::kScalar));
    } else {
      std::memcpy(next(), src, count * coding.item);
    }
    added(count * coding.item, count);
    return;
  }
  codec::EncodeJob job;
  job.src = src;
  job.dtype = coding.dtype;
  job.count = count;
  job.map = map;
  if (coding.block->spec().error_feedback) job.residual = tensor.state->residual.data() + position;
  job.position = {position, tensor.call_number, tensor.input_stream};
  job.dst = next();
  job.capacity = left();
  const codec::EncodeResult result = coding.block->encode(job);
  saw_nonfinite(result.nonfinite);
  added(result.bytes, count);
}

void PayloadWriter::add_encoded(const std::uint8_t* wire, std::uint64_t count, std::uint64_t position) {
  const std::size_t bytes = coding_->bound(count);
  std::memcpy(next(), wire + coding_->bound(position), bytes);
  added(bytes, count);
}

void PayloadWriter::added(std::size_t bytes, std::uint64_t count) {
  if (coding_->has_table()) {
    const auto length = static_cast<std::uint32_t>(bytes);
    std::memcpy(table_, &length, sizeof length);
    table_ += sizeof length;
  }
  bytes_ += bytes;
  count_ += count;
}

Header PayloadWriter::header(std::uint8_t phase, std::uint32_t chunk) const {
  Header header;
  header.kind = bytes_ > 0 ? Kind::kData : Kind::kHeaderOnly;
  if (raw_) header.flags |= kFlagRaw;
  if (has_table_) header.flags |= kFlagLengthTable;
  if (nonfinite_) header.flags |= kFlagNonFinite;
  header.payload_bytes = static_cast<std::uint32_t>(bytes_);
  header.count = static_cast<std::uint32_t>(count_);
  header.phase = phase;
  header.chunk = chunk;
  if (has_crc_) {
    header.flags |= kFlagPayloadCrc;
    header.payload_crc = crc32c(payload_, bytes_);
  }
  return header;
}

PayloadReader::PayloadReader(const Coding& coding, const Incoming& message, std::size_t pieces,
                             std::size_t prefix)
    : coding_(&coding),
      table_(message.payload + prefix),
      data_(message.payload),
      left_(message.header.payload_bytes),
      peer_(message.peer) {
  if (message.header.has(kFlagRaw) != coding.raw() ||
      message.header.has(kFlagLengthTable) != coding.has_table()) {
    throw Error(Code::kPeerLost,
                "rank " + std::to_string(peer_) + " is out of step: its payload is coded otherwise", peer_);
  }
  const std::size_t before = prefix + coding.table_bytes(pieces);
  if (before > left_) broken("it ends in its length table");
  data_ += before;
  left_ -= before;
}

codec::Encoded PayloadReader::next(std::uint64_t count) {
  std::size_t bytes = coding_->bound(count);
  if (coding_->has_table()) {
    std::uint32_t length;
    std::memcpy(&length, table_, sizeof length);
    table_ += sizeof length;
    if (length > bytes) broken("a piece is longer than its elements can be");
    bytes = length;
  }
  if (bytes > left_) broken("it is too short");
  const codec::Encoded piece{data_, bytes};
  data_ += bytes;
  left_ -= bytes;
  return piece;
}

void PayloadReader::decode_next(void* dst, std::uint64_t count, std::uint64_t total_bytes) {
  const codec::Encoded piece = next(count);
  if (coding_->raw()) {
    std::memcpy(dst, piece.data, piece.bytes);
    return;
  }
  if (total_bytes >= codec::kStreamBytes) {
    coding_->block->decode_streaming(piece, dst, coding_->dtype, count);
  } else {
    coding_->block->decode(piece, dst, coding_->dtype, count);
  }
}

void PayloadReader::done() const {
  if (left_ > 0) broken("it is too long");
}

void PayloadReader::broken(const char* what) const {
  throw Error(Code::kCodec, "a payload from rank " + std::to_string(peer_) + " cannot be read: " + what, peer_);
}

namespace {

template <typename Bits>
bool any_nonfinite(const Bits* values, std::uint64_t count, Bits exponent) {
  constexpr std::uint64_t kStride = 1024;  // short enough to stop early, long enough to run in vectors
  for (std::uint64_t begin = 0; begin < count; begin += kStride) {
    const std::uint64_t end = begin + kStride < count ? begin + kStride : count;
    Bits found = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      found = static_cast<Bits>(found | static_cast<Bits>((values[i] & exponent) == exponent));
    }
    if (found != 0) return true;
  }
  return false;
}

}  // namespace

bool has_nonfinite(const void* src, DType dtype, std::uint64_t count) {
  if (dtype == DType::kF32) {
    return any_nonfinite(static_cast<const std::uint32_t*>(src), count, std::uint32_t{0x7F800000});
  }
  const std::uint16_t exponent = dtype == DType::kBF16 ? 0x7F80 : 0x7C00;
  return any_nonfinite(static_cast<const std::uint16_t*>(src), count, exponent);
}

}  // namespace gcomm::collective
