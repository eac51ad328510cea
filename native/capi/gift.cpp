// A basis by hand: what all_reduce keeps for a key, as an object.
#include <cstring>

#include "base/fp_env.h"
#include "capi/guard.h"
#include "comm/arguments.h"
#include "comm/env.h"
#include "gift/coordinates.h"

using gcomm::Code;
using gcomm::DType;
using gcomm::Error;
using gcomm::capi::guard;
using gcomm::capi::required;
using gcomm::capi::required_memory;

struct gcomm_gift_basis {
  gcomm::gift::Basis basis;
  gcomm::codec::Isa isa;
  int alpha_eighths;
  gcomm::gift::Coordinates coordinates;  // once there is a reference
  gcomm::gift::RankUpdate update;
};

namespace {

gcomm_gift_basis& learned(gcomm_gift_basis* basis) {
  gcomm_gift_basis& target = required(basis, "basis");
  if (target.basis.rank() > 0) return target;
  throw Error(Code::kInvalid, "basis: it has seen no reference yet; call gcomm_gift_basis_update() first");
}

}  // namespace

extern "C" {

gcomm_result gcomm_gift_basis_create(uint64_t rows, uint64_t cols, uint64_t rank, const char* isa,
                                     gcomm_gift_basis** basis) {
  return guard([&] {
    required(basis, "basis") = nullptr;
    const gcomm::codec::Isa chosen = isa == nullptr ? gcomm::comm::default_isa() : gcomm::codec::parse_isa(isa);
    gcomm::codec::GiftSpec defaults;
    *basis = new gcomm_gift_basis{gcomm::gift::Basis(rows, cols, rank), chosen, defaults.alpha_eighths, {}, {}};
  });
}

void gcomm_gift_basis_destroy(gcomm_gift_basis* basis) { delete basis; }

gcomm_result gcomm_gift_basis_update(gcomm_gift_basis* basis, const void* reference, gcomm_dtype dtype,
                                     int32_t rounds) {
  return guard([&] {
    gcomm_gift_basis& target = required(basis, "basis");
    const auto type = static_cast<DType>(dtype);
    gcomm::comm::check_reducible(type);
    gcomm::comm::check_memory(reference, target.basis.rows() * target.basis.cols(), 1, type, {"reference"});
    if (rounds < 1) throw Error(Code::kInvalid, "rounds: " + std::to_string(rounds) + ", expected 1 or more");
    gcomm::gift::MatrixView view;
    view.data = reference;
    view.dtype = type;
    view.rows = target.basis.rows();
    view.cols = target.basis.cols();
    const gcomm::FpEnvironment environment;
    if (!target.basis.update(view, rounds, target.isa)) {
      throw Error(Code::kNonFinite,
                  "reference: it holds a NaN or an Inf, or nothing but zeros; the basis is as before");
    }
    target.coordinates.set(target.basis, target.basis.rank(), target.alpha_eighths);
    target.update = target.coordinates.make_update();
  });
}

gcomm_result gcomm_gift_basis_apply(gcomm_gift_basis* basis, float* matrix) {
  return guard([&] {
    gcomm_gift_basis& target = learned(basis);
    required_memory(matrix, "matrix");
    const gcomm::FpEnvironment environment;
    target.coordinates.damp(matrix, target.update, target.isa);
  });
}

gcomm_result gcomm_gift_basis_inverse(gcomm_gift_basis* basis, float* matrix) {
  return guard([&] {
    gcomm_gift_basis& target = learned(basis);
    required_memory(matrix, "matrix");
    const gcomm::FpEnvironment environment;
    target.coordinates.raise(matrix, target.update, target.isa);
  });
}

gcomm_result gcomm_gift_basis_get(const gcomm_gift_basis* basis, gcomm_gift_basis_info* info) {
  return guard([&] {
    const gcomm_gift_basis& from = required(basis, "basis");
    gcomm_gift_basis_info values{};
    values.rows = from.basis.rows();
    values.cols = from.basis.cols();
    values.max_rank = from.basis.max_rank();
    values.rank = from.basis.rank();
    values.squared_norm = from.basis.squared_norm();
    values.digest = from.basis.digest();
    gcomm::capi::write_struct(info, values, "gcomm_gift_basis_info");
  });
}

gcomm_result gcomm_gift_basis_read(const gcomm_gift_basis* basis, double* singular_values, float* u, float* v) {
  return guard([&] {
    const gcomm_gift_basis& from = required(basis, "basis");
    const std::size_t rank = from.basis.rank();
    const std::size_t width = gcomm::gift::padded_rank(from.basis.max_rank());
    const auto columns = [&](const float* source, std::size_t rows, float* to) {
      for (std::size_t i = 0; to != nullptr && i < rows; ++i) {
        std::memcpy(to + i * rank, source + i * width, rank * sizeof(float));
      }
    };
    if (singular_values != nullptr) {
      std::memcpy(singular_values, from.basis.singular_values().data(), rank * sizeof(double));
    }
    columns(from.basis.u(), from.basis.rows(), u);
    columns(from.basis.v(), from.basis.cols(), v);
  });
}

}  // extern "C"
