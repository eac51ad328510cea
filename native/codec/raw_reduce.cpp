#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/fp_env.h"
#include "codec/block_codec.h"
#include "codec/codec.h"

namespace gcomm::codec {
namespace {

struct RawReduce {
  const Driver& driver;
  const ElementDriver& elements;
  std::size_t item;
  const void* const* inputs;
  int ranks;

  // The sum of elements [done, done + count) into x. spare is scratch.
  void sum(std::size_t done, std::size_t count, bool zero, float* x, float* spare) const {
    elements.load(input(0, done), count, x);
    if (zero) {
      driver.zero_nonfinite(x, count);
    }
    for (int rank = 1; rank < ranks; ++rank) {
      if (zero) {
        elements.load(input(rank, done), count, spare);
        driver.zero_nonfinite(spare, count);
        driver.elements[0].add(spare, count, x);
      } else {
        elements.add(input(rank, done), count, x);
      }
    }
  }
  bool any_nonfinite(std::size_t done, std::size_t count, float* spare) const {
    for (int rank = 0; rank < ranks; ++rank) {
      elements.load(input(rank, done), count, spare);
      if (driver.has_nonfinite(spare, count)) {
        return true;
      }
    }
    return false;
  }

 private:
  const std::uint8_t* input(int rank, std::size_t done) const {
    return static_cast<const std::uint8_t*>(inputs[rank]) + done * item;
  }
};

}  // namespace

bool raw_reduce(const void* const* inputs, int ranks, DType dtype, std::size_t count, float divisor, bool zero,
                void* out, Isa isa) {
  const FpEnvironment environment;
  const Driver& driver = need_driver(isa);
  const ElementDriver& elements = driver.elements[element_index(dtype)];
  const RawReduce reduce{driver, elements, dtype_size(dtype), inputs, ranks};
  alignas(64) float x[kTile];
  alignas(64) float spare[kTile];
  bool special = false;
  for (std::size_t done = 0; done < count; done += kTile) {
    const std::size_t length = std::min(kTile, count - done);
    reduce.sum(done, length, false, x, spare);
    // A finite sum had finite inputs.
    if (driver.has_nonfinite(x, length) && reduce.any_nonfinite(done, length, spare)) {
      special = true;
      if (zero) {
        reduce.sum(done, length, true, x, spare);
      }
    }
    if (divisor != 1.0f) {
      driver.divide(x, length, divisor);
    }
    elements.overflow(x, length);
    elements.store(x, length, static_cast<std::uint8_t*>(out) + done * dtype_size(dtype));
  }
  return special;
}

}  // namespace gcomm::codec
