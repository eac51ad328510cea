#include "gift/products.h"

#include <string>

#include "base/error.h"
#include "base/fp_env.h"
#include "gift/cpu/driver.h"

namespace gcomm::gift {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kInvalid, text); }

}  // namespace

void products(const MatrixView& g, std::size_t begin, std::size_t end, std::size_t rank, const float* u,
              float* left, const float* v, float* right, codec::Isa isa) {
  if (!dtype_info(g.dtype).codable) {
    refuse(std::string("products: dtype ") + dtype_info(g.dtype).name +
           "; expected float32, bfloat16 or float16");
  }
  if (begin > end || end > g.rows) {
    refuse("products: rows " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
           std::to_string(g.rows));
  }
  if ((u == nullptr) != (left == nullptr) || (v == nullptr) != (right == nullptr)) {
    refuse("products: u and left, and v and right, are given in pairs");
  }
  if (rank == 0) {
    refuse("products: rank 0; expected at least 1");
  }
  if (g.cols == 0) {
    refuse("products: a matrix without columns");
  }
  const FpEnvironment environment;
  find_driver(isa).products(g, begin, end, padded_rank(rank), u, left, v, right);
}

void rank_update(float* x, std::uint64_t element, std::size_t count, std::size_t cols, std::size_t terms,
                 const float* l, const float* r, codec::Isa isa) {
  if (terms % 8 != 0) {
    refuse("rank_update: " + std::to_string(terms) + " terms; expected a multiple of 8");
  }
  if (count == 0) {
    return;
  }
  if (cols == 0) {
    refuse("rank_update: a matrix without columns");
  }
  const FpEnvironment environment;
  find_driver(isa).rank_update(x, element, count, cols, terms, l, r);
}

}  // namespace gcomm::gift
