// GIFT: what the engine sees of it.
#pragma once

#include <memory>

#include "collective/key_transform.h"

namespace gcomm::gift {

// The transform of one key for a codec whose spec says gift. rows x cols is the tensor as a matrix. saved:
// null, or what save() wrote for this shape; throws kCodec if it did not.
std::unique_ptr<collective::KeyTransform> make_key_transform(const codec::CodecSpec& spec, codec::Isa isa,
                                                             std::uint64_t rows, std::uint64_t cols,
                                                             const codec::Encoded* saved = nullptr);

}  // namespace gcomm::gift
