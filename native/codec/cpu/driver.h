// What one instruction set offers: plain functions on tiles, so that nothing but loops is compiled with its
// flags.
//
// Tiles are at most kTile elements; what no format is involved in takes any number. Where a function reads x as
// floats, kTile floats are readable and those past `count` are +0; where it writes floats, kTile floats are
// writable, and those past `count` get anything. Encoded bytes are read and written to their exact length.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/formats/list.h"
#include "codec/tile.h"

namespace gcomm::codec {

// Where the bytes that the next tile will read begin, so that they are on their way while this one is computed.
struct Ahead {
  const char* bytes = nullptr;
  std::size_t size = 0;  // 0: nothing to fetch
};

// What happens to decoded values v.
enum class Sink {
  kStore,   // out = v
  kStream,  // out = v, past the caches; out is aligned to 16 bytes, and the tile is whole
  kAdd,     // out = base + v, one canonical NaN; base may be out (elsewhere it is not read)
};

struct FormatDriver {
  // Returns whether x held a NaN or an Inf.
  bool (*encode)(const float* x, std::size_t count, std::uint8_t* dst, const Ahead& ahead);
  // The same, and what will be decoded from dst goes to out; unless it returns true, then out is left alone.
  bool (*encode_and_decode)(const float* x, std::size_t count, std::uint8_t* dst, float* out,
                            const Ahead& ahead);
  void (*decode)(const std::uint8_t* src, std::size_t count, Sink sink, const float* base, float* out);
};

// One of the dtypes that codecs read and write. Elements in memory need no alignment, and exactly `count` are
// touched.
struct ElementDriver {
  void (*load)(const void* src, std::size_t count, float* x);
  void (*add)(const void* src, std::size_t count, float* x);  // x += src
  // Finite values saturate, one canonical NaN.
  void (*store)(const float* x, std::size_t count, void* dst);
  // Finite values that would round to an Inf become one.
  void (*overflow)(float* x, std::size_t count);
};

struct Driver {
  FormatDriver formats[AllFormats::kSize];
  ElementDriver elements[3];  // by DType: fp32, bf16, fp16

  void (*divide)(float* x, std::size_t count, float divisor);
  bool (*has_nonfinite)(const float* x, std::size_t count);
  void (*zero_nonfinite)(float* x, std::size_t count);
  // x += residual, where a sum of finite values beyond FLT_MAX becomes FLT_MAX of its sign; nothing that is not
  // finite is added.
  void (*add_residual)(float* x, const float* residual, std::size_t count);
  // residual = x - decoded, 0 where that or either of them is not finite.
  void (*take_residual)(const float* x, const float* decoded, float* residual, std::size_t count);
  // signs: one bit an element of a tile (transform/hadamard.h). count is a multiple of size.
  // x may be out.
  void (*hadamard)(const float* x, float* out, std::size_t count, int size, const std::uint32_t* signs);
  void (*hadamard_inverse)(const float* x, float* out, std::size_t count, int size, const std::uint32_t* signs);
};

// One a source file; which of them exist is up to the build, which of them may run is up to the processor.
const Driver& scalar_driver();
const Driver& avx2_driver();
const Driver& avx512_driver();

// Stochastic rounding and scale=search: not on the hot path, so one scalar form serves every instruction set.
struct CarefulOptions {
  bool stochastic = false;
  bool search = false;
  std::uint64_t seed = 0;
  std::uint64_t element = 0;  // index of the tile's first element, a multiple of 8
  std::uint32_t call = 0;
  std::uint32_t stream = 0;
};
using CarefulEncode = bool (*)(const float* x, std::size_t count, std::uint8_t* dst,
                               const CarefulOptions& options);
CarefulEncode careful_encode(int format);

}  // namespace gcomm::codec
