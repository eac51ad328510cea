#include <algorithm>

#include "base/fp_env.h"
#include "capi/guard.h"
#include "comm/arguments.h"
#include "comm/env.h"
#include "mapl/rvq.h"

using gcomm::Code;
using gcomm::DType;
using gcomm::Error;
using gcomm::capi::guard;
using gcomm::capi::required;
using gcomm::capi::required_memory;

struct gcomm_mapl_rvq {
  std::size_t dim;
  gcomm::mapl::Learner learner;
  gcomm::mapl::RowCoder coder;
};

namespace {

// So that no product of a row's length and its parts' sizes overflows.
constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 32;

std::uint32_t or_default(std::uint32_t value, std::size_t standard) {
  return value == 0 ? static_cast<std::uint32_t>(standard) : value;
}

gcomm::mapl::Rows rows_of(const gcomm_mapl_rvq& rvq, const void* data, gcomm_dtype dtype, std::uint64_t tokens,
                          const char* name) {
  const auto type = static_cast<DType>(dtype);
  gcomm::comm::check_reducible(type);
  gcomm::comm::check_memory(data, tokens, rvq.dim, type, {name});
  return {data, type, tokens, rvq.dim};
}

}  // namespace

extern "C" {

gcomm_result gcomm_mapl_rvq_create(const gcomm_mapl_rvq_config* config, gcomm_mapl_rvq** rvq) {
  return guard([&] {
    required(rvq, "rvq") = nullptr;
    const auto given = gcomm::capi::read_struct(required(config, "config"), "gcomm_mapl_rvq_config");
    if (given.dim < 1 || given.dim > kMaxDim) {
      throw Error(Code::kInvalid, "dim: " + std::to_string(given.dim) + ", expected 1 to 2^32");
    }
    const gcomm::codec::Isa isa =
        given.isa == nullptr ? gcomm::comm::default_isa() : gcomm::codec::parse_isa(given.isa);
    gcomm::mapl::CodebookShape shape;
    shape.subvector = or_default(given.subvector, shape.subvector);
    shape.stages = or_default(given.stages, shape.stages);
    shape.codewords = or_default(given.codewords, shape.codewords);
    *rvq = new gcomm_mapl_rvq{given.dim, gcomm::mapl::Learner(shape, given.seed), gcomm::mapl::RowCoder(isa)};
  });
}

void gcomm_mapl_rvq_destroy(gcomm_mapl_rvq* rvq) { delete rvq; }

gcomm_result gcomm_mapl_rvq_encoded_bytes(const gcomm_mapl_rvq* rvq, uint64_t tokens, uint64_t* bytes) {
  return guard([&] {
    const gcomm_mapl_rvq& from = required(rvq, "rvq");
    required(bytes, "bytes") = gcomm::mapl::encoded_bytes(from.learner.codebook().shape(), from.dim, tokens);
  });
}

gcomm_result gcomm_mapl_rvq_update(gcomm_mapl_rvq* rvq, const void* z, gcomm_dtype dtype, uint64_t tokens) {
  return guard([&] {
    gcomm_mapl_rvq& target = required(rvq, "rvq");
    const gcomm::mapl::Rows rows = rows_of(target, z, dtype, tokens, "z");
    const gcomm::FpEnvironment environment;
    target.coder.update(target.learner, rows);
  });
}

gcomm_result gcomm_mapl_rvq_encode(gcomm_mapl_rvq* rvq, const void* z, gcomm_dtype dtype, uint64_t tokens,
                                   void* dst, uint64_t capacity, uint64_t* written) {
  return guard([&] {
    gcomm_mapl_rvq& target = required(rvq, "rvq");
    const gcomm::mapl::Rows rows = rows_of(target, z, dtype, tokens, "z");
    const gcomm::mapl::Codebook& book = target.learner.codebook();
    const std::uint64_t bytes = gcomm::mapl::encoded_bytes(book.shape(), target.dim, tokens);
    required(written, "written");
    if (capacity < bytes) {
      throw Error(Code::kInvalid, "dst: room for " + std::to_string(capacity) + " bytes, " +
                                      std::to_string(bytes) + " are needed");
    }
    if (bytes > 0) {
      required_memory(dst, "dst");
    }
    const gcomm::FpEnvironment environment;
    target.coder.encode(book, rows, static_cast<std::uint8_t*>(dst));
    *written = bytes;
  });
}

gcomm_result gcomm_mapl_rvq_decode(const gcomm_mapl_rvq* rvq, const void* src, uint64_t bytes, void* dst,
                                   gcomm_dtype dtype, uint64_t tokens) {
  return guard([&] {
    const gcomm_mapl_rvq& from = required(rvq, "rvq");
    const gcomm::mapl::Rows rows = rows_of(from, dst, dtype, tokens, "dst");
    if (bytes > 0) {
      required_memory(src, "src");
    }
    const gcomm::FpEnvironment environment;
    gcomm::mapl::decode(from.learner.codebook(), static_cast<const std::uint8_t*>(src), bytes, dst, rows.dtype,
                        tokens, from.dim);
  });
}

gcomm_result gcomm_mapl_rvq_read(const gcomm_mapl_rvq* rvq, float* codebooks) {
  return guard([&] {
    const std::vector<float>& values = required(rvq, "rvq").learner.codebook().values();
    required_memory(codebooks, "codebooks");
    std::copy(values.begin(), values.end(), codebooks);
  });
}

gcomm_result gcomm_mapl_rvq_load(gcomm_mapl_rvq* rvq, const float* codebooks) {
  return guard([&] {
    gcomm_mapl_rvq& target = required(rvq, "rvq");
    required_memory(codebooks, "codebooks");
    target.learner.load(codebooks);
  });
}

}  // extern "C"
