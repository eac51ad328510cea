#include <string>

#include "base/error.h"
#include "codec/block_codec.h"
#include "codec/codec.h"

namespace gcomm::codec {
namespace {

constexpr Isa kBestFirst[] = {Isa::kAvx512, Isa::kAvx2, Isa::kScalar};

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  throw Error(Code::kInvalid, "isa: " + std::to_string(static_cast<int>(isa)) + " is not an instruction set");
}

bool isa_available(Isa isa) { return find_driver(isa) != nullptr; }

Isa parse_isa(std::string_view name) {
  for (const Isa isa : kBestFirst) {
    if (name == isa_name(isa)) {
      return isa;
    }
  }
  throw Error(Code::kInvalid, "isa: '" + std::string(name) + "' is not known; expected scalar, avx2 or avx512");
}

Isa best_isa() {
  for (const Isa isa : kBestFirst) {
    if (isa_available(isa)) {
      return isa;
    }
  }
  return Isa::kScalar;
}

void BlockCodec::decode_mapped(Encoded, void*, DType, std::size_t, const TileMap&, std::uint64_t) const {
  throw Error(Code::kInternal, std::string(format().name) + " here decodes no mapped values");
}

const Driver& need_driver(Isa isa) {
  const Driver* driver = find_driver(isa);
  if (driver == nullptr) {
    throw Error(Code::kUnsupported, std::string("isa: ") + isa_name(isa) +
                                        " is not offered here (not built in, or this processor lacks it)");
  }
  return *driver;
}

}  // namespace gcomm::codec
