// What a BlockCodec reads: the values of a range, tile by tile, as the formats want them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "codec/block_codec.h"

namespace gcomm::codec {

struct alignas(64) TileBuffer {
  float value[kTile];
};

// Tiles that a map gets at once: some rows of a wide matrix, so that it need not fetch its factors for each.
constexpr std::size_t kMappedTiles = 4;

struct alignas(64) MappedBuffer {
  float value[kMappedTiles * kTile];
};

inline bool is_aligned(const void* p, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(p) % alignment == 0;
}

// The rest of the last tile.
inline void fill_up(float* values, std::size_t count) {
  std::fill(values + count, values + (count + kTile - 1) / kTile * kTile, 0.0f);
}

// A range's values tile by tile: read where they lie if that is possible, else loaded, their non-finite ones
// replaced by zero if so asked, and mapped.
class Source {
 public:
  Source(const Driver& driver, const void* src, DType dtype, std::size_t total, const TileMap* map,
         std::uint64_t element, bool zero)
      : driver_(driver),
        elements_(driver.elements[element_index(dtype)]),
        src_(src),
        dtype_(dtype),
        total_(total),
        map_(map),
        element_(element),
        zero_(zero),
        in_place_(dtype == DType::kF32 && map == nullptr && !zero && is_aligned(src, alignof(float))) {}

  // kTile floats, those past `count` +0. Good until the next tile is asked for.
  const float* tile(std::size_t done, std::size_t count) {
    if (in_place_ && count == kTile) {
      return reinterpret_cast<const float*>(element_at(src_, dtype_, done));
    }
    if (map_ == nullptr) {
      load(done, count);
      return buffer_.value;
    }
    constexpr std::size_t kGroup = kMappedTiles * kTile;
    if (done % kGroup == 0) {
      const std::size_t length = std::min(kGroup, total_ - done);
      load(done, length);
      map_->forward(element_ + done, length, buffer_.value);
      fill_up(buffer_.value, length);
    }
    return buffer_.value + done % kGroup;
  }

  // Whether zeros took the place of something since the last look.
  bool zeroed() { return std::exchange(zeroed_, false); }

  // Whether the elements themselves, unmapped, hold a NaN or an Inf.
  bool has_nonfinite(std::size_t done, std::size_t count) const {
    TileBuffer own;
    elements_.load(element_at(src_, dtype_, done), count, own.value);
    fill_up(own.value, count);
    return driver_.has_nonfinite(own.value, count);
  }

 private:
  void load(std::size_t done, std::size_t count) {
    elements_.load(element_at(src_, dtype_, done), count, buffer_.value);
    fill_up(buffer_.value, count);
    if (zero_ && driver_.has_nonfinite(buffer_.value, count)) {
      driver_.zero_nonfinite(buffer_.value, count);
      zeroed_ = true;
    }
  }

  const Driver& driver_;
  const ElementDriver& elements_;
  const void* src_;
  const DType dtype_;
  const std::size_t total_;
  const TileMap* map_;
  const std::uint64_t element_;
  const bool zero_;
  const bool in_place_;
  bool zeroed_ = false;
  MappedBuffer buffer_;
};

}  // namespace gcomm::codec
