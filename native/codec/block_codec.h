// The codec room's own: what turns tile drivers into a BlockCodec.
#pragma once

#include <cstddef>
#include <memory>

#include "codec/codec.h"
#include "codec/cpu/driver.h"

namespace gcomm::codec {

struct FormatLayout {
  std::size_t block = 1;
  std::size_t code_bytes = 0;   // a block
  std::size_t scale_bytes = 0;  // a block
  std::size_t tile_header = 0;

  std::size_t tile_bytes(std::size_t count) const {
    return tile_header + (count + block - 1) / block * (code_bytes + scale_bytes);
  }
};
const FormatLayout& format_layout(int format);
bool format_can_search(int format);

// Null where this build or this processor lacks it.
const Driver* find_driver(Isa isa);
// Throws Error(kUnsupported) instead.
const Driver& need_driver(Isa isa);

// make() with the driver given.
std::shared_ptr<const BlockCodec> make_tile_codec(const CodecSpec& spec, Isa isa, const Driver& driver);

inline const std::uint8_t* element_at(const void* p, DType dtype, std::size_t index) {
  return static_cast<const std::uint8_t*>(p) + index * dtype_size(dtype);
}
inline std::uint8_t* element_at(void* p, DType dtype, std::size_t index) {
  return static_cast<std::uint8_t*>(p) + index * dtype_size(dtype);
}

// Position of a codable dtype in Driver::elements; throws Error(kInvalid) for any other.
std::size_t element_index(DType dtype);

}  // namespace gcomm::codec
