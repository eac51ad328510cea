// Processors other than x86-64: the scalar driver alone.
#include "codec/block_codec.h"

namespace gcomm::codec {

const Driver* find_driver(Isa isa) { return isa == Isa::kScalar ? &scalar_driver() : nullptr; }

}  // namespace gcomm::codec
