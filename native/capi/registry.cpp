// Version, result names, and what is here.
#include "capi/guard.h"
#include "codec/codec.h"
#include "transport/transports.h"

#define GCOMM_TEXT(x) #x
#define GCOMM_VERSION_TEXT(major, minor, patch) GCOMM_TEXT(major) "." GCOMM_TEXT(minor) "." GCOMM_TEXT(patch)

namespace {

void past_the_end(size_t index, size_t rows) {
  if (index < rows) return;
  throw gcomm::Error(gcomm::Code::kInvalid,
                     "index: " + std::to_string(index) + ", there are " + std::to_string(rows) + " rows");
}

}  // namespace

extern "C" {

const char* gcomm_version_string(void) {
  return GCOMM_VERSION_TEXT(GCOMM_VERSION_MAJOR, GCOMM_VERSION_MINOR, GCOMM_VERSION_PATCH);
}

uint32_t gcomm_version_number(void) {
  return GCOMM_VERSION_MAJOR << 16 | GCOMM_VERSION_MINOR << 8 | GCOMM_VERSION_PATCH;
}

const char* gcomm_result_string(gcomm_result result) {
  switch (result) {
    case GCOMM_OK:
      return "ok";
    case GCOMM_ERR_INVALID:
      return "invalid argument";
    case GCOMM_ERR_MISMATCH:
      return "ranks disagree";
    case GCOMM_ERR_TIMEOUT:
      return "timeout";
    case GCOMM_ERR_PEER_LOST:
      return "peer lost";
    case GCOMM_ERR_CODEC:
      return "codec error";
    case GCOMM_ERR_DESYNC:
      return "dictionary out of step";
    case GCOMM_ERR_ABORTED:
      return "aborted";
    case GCOMM_ERR_CLOSED:
      return "communicator closed";
    case GCOMM_ERR_UNSUPPORTED:
      return "unsupported";
    case GCOMM_ERR_NO_MEMORY:
      return "out of memory";
    case GCOMM_ERR_INTERNAL:
      return "internal error";
    case GCOMM_ERR_NONFINITE:
      return "not a finite number";
    case GCOMM_PENDING:
      return "pending";
  }
  return "unknown result";
}

gcomm_result gcomm_codec_row(size_t index, gcomm_registry_row* row) {
  return gcomm::capi::guard([&] {
    const auto& formats = gcomm::codec::formats();
    past_the_end(index, formats.size());
    const gcomm::codec::FormatInfo& format = formats[index];
    gcomm::capi::write_struct(row, {0, format.name, 1, "", format.bits_per_element, format.block},
                              "gcomm_registry_row");
  });
}

gcomm_result gcomm_transport_row(size_t index, gcomm_registry_row* row) {
  return gcomm::capi::guard([&] {
    const auto rows = gcomm::transports();
    past_the_end(index, rows.size());
    gcomm::capi::write_struct(row,
                              {0, rows[index].name, rows[index].available ? 1 : 0, rows[index].reason, 0, 0},
                              "gcomm_registry_row");
  });
}

gcomm_result gcomm_isa_row(size_t index, gcomm_registry_row* row) {
  return gcomm::capi::guard([&] {
    using gcomm::codec::Isa;
    static constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};
    past_the_end(index, std::size(kAll));
    const bool available = gcomm::codec::isa_available(kAll[index]);
    const char* reason = available ? "" : "this processor lacks it, or it was not compiled in";
    gcomm::capi::write_struct(row, {0, gcomm::codec::isa_name(kAll[index]), available ? 1 : 0, reason, 0, 0},
                              "gcomm_registry_row");
  });
}

}  // extern "C"
