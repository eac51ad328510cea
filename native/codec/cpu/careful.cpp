// Stochastic rounding and scale=search, a block at a time in plain C++.
#include <cstddef>
#include <cstdint>

#include "base/philox.h"
#include "codec/cpu/driver.h"
#include "codec/cpu/scaled_tile.h"
#include "codec/formats/lanes_scalar.h"

namespace gcomm::codec {
namespace {

using V = ScalarLanes;

// The numbers of 8 consecutive elements, of which the first stands at a multiple of 8.
void random8(const CarefulOptions& options, std::uint64_t element, std::int32_t* u) {
  const std::uint64_t w = element / 8;
  const PhiloxBlock block = philox4x32_10(
      options.seed,
      {{static_cast<std::uint32_t>(w), static_cast<std::uint32_t>(w >> 32), options.call, options.stream}});
  for (int k = 0; k < 8; ++k) {
    u[k] = static_cast<std::int32_t>(block.word[k / 2] >> (16 * (k % 2)) & 0xFFFFu);
  }
}

template <class T>
struct CarefulPlain {
  static bool encode(const float* x, std::size_t count, std::uint8_t* dst, const CarefulOptions& options) {
    bool special = false;
    for (std::size_t i = 0; i < count; i += 8) {
      std::int32_t u[8];
      random8(options, options.element + i, u);
      for (std::size_t k = 0; k < 8 && i + k < count; ++k) {
        T::template store_stochastic<V>(dst + (i + k) * T::kCodeBytes, x[i + k], u[k]);
        special |= !is_finite(x[i + k]);
      }
    }
    return special;
  }
};

template <class T>
struct CarefulScaled {
  static constexpr std::size_t kBlock = T::kBlock;

  struct Candidate {
    std::int32_t scale_code;
    std::uint8_t codes[kBlock];
  };

  static bool encode(const float* x, std::size_t count, std::uint8_t* dst, const CarefulOptions& options) {
    const std::size_t blocks = TileLayout<T>::blocks(count);
    BlockScales<T> scales;
    BlockContents contents[TileLayout<T>::kBlocks];
    std::int32_t largest = 0;
    bool special = false;
    for (std::size_t b = 0; b < blocks; ++b) {
      contents[b] = inspect_block<T::kBlock>(x + b * kBlock);
      largest = contents[b].absmax > largest ? contents[b].absmax : largest;
      special |= contents[b].special;
    }
    if constexpr (T::Scale::kTileScale) {
      scales.tile = T::Scale::tile(bits_float(static_cast<std::uint32_t>(largest)));
    }
    std::uint8_t* out = dst + TileLayout<T>::kHeader + blocks * T::Scale::kBytes;
    for (std::size_t b = 0; b < blocks; ++b, out += T::kCodeBytes) {
      Candidate best;
      encode_block(x + b * kBlock, contents[b], scales.tile, options, options.element + b * kBlock, best);
      scales.code[b] = best.scale_code;
      if constexpr (T::kPacked) {
        T::template pack<V>(best.codes, kBlock, out);
      } else {
        __builtin_memcpy(out, best.codes, kBlock);
      }
      if (contents[b].special) {
        scales.code[b] = special_scale<T>(contents[b], scales.code[b]);
        if constexpr (!T::kHasNaN) {
          __builtin_memset(out, 0, T::kCodeBytes);
        }
      }
    }
    write_scales<T>(scales, blocks, dst);
    return special;
  }

 private:
  static void encode_block(const float* x, const BlockContents& contents, float tile,
                           const CarefulOptions& options, std::uint64_t element, Candidate& best) {
    std::int32_t u[kBlock];
    if (options.stochastic) {
      for (std::size_t j = 0; j < kBlock; j += 8) {
        random8(options, element + j, u + j);
      }
    }
    const std::int32_t* random = options.stochastic ? u : nullptr;
    try_scale(x, contents.absmax, T::kQMax, tile, random, best);
    if constexpr (T::kSearchable) {
      if (options.search && !contents.special) {
        Candidate other;
        try_scale(x, contents.absmax, 4.0f, tile, random, other);
        if (squared_error(x, other, tile) < squared_error(x, best, tile)) {
          best = other;
        }
      }
    }
  }

  static void try_scale(const float* x, std::int32_t absmax, float divisor, float tile,
                        const std::int32_t* random, Candidate& made) {
    const auto chosen = T::Scale::template choose<V>(V::real(absmax), divisor, tile);
    made.scale_code = chosen.code;
    for (std::size_t j = 0; j < kBlock; ++j) {
      float y = x[j] * chosen.inverse;
      if constexpr (T::Scale::kHasLimit) {
        y = T::Scale::template limit<V>(y, chosen.code);
      }
      std::int32_t code;
      if (!is_finite(x[j])) {
        code = special_code(x[j]);
      } else if (random != nullptr) {
        code = T::template encode_stochastic<V>(y, random[j]);
      } else {
        float value;
        code = T::template encode<V>(y, value);
      }
      made.codes[j] = static_cast<std::uint8_t>(code);
    }
  }

  static std::int32_t special_code(float x) {
    if constexpr (T::kHasNaN) {
      return T::template encode_special<V>(x);
    } else {
      (void)x;
      return 0;  // the whole block will be marked
    }
  }

  // In the order that the wire format fixes: eight partial sums, then pairwise.
  static float squared_error(const float* x, const Candidate& candidate, float tile) {
    std::uint8_t packed[T::kCodeBytes];
    std::uint8_t levels[kBlock];
    T::template pack<V>(candidate.codes, kBlock, packed);
    T::template unpack<V>(packed, kBlock, levels);
    const float scale = T::Scale::template value<V>(candidate.scale_code, tile);
    float sum[8];
    for (std::size_t j = 0; j < kBlock; ++j) {
      const float error = x[j] - T::template decode<V>(V::load_i8(levels + j)) * scale;
      sum[j % 8] = j < 8 ? error * error : sum[j % 8] + error * error;
    }
    for (int half = 4; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) {
        sum[j] = sum[j] + sum[j + half];
      }
    }
    return sum[0];
  }
};

template <class T>
constexpr CarefulEncode careful_of() {
  if constexpr (T::Scale::kBytes == 0) {
    return &CarefulPlain<T>::encode;
  } else {
    return &CarefulScaled<T>::encode;
  }
}

template <class... T>
CarefulEncode pick(int format, FormatList<T...>) {
  static constexpr CarefulEncode kTable[] = {careful_of<T>()...};
  return kTable[format];
}

}  // namespace

CarefulEncode careful_encode(int format) { return pick(format, AllFormats{}); }

}  // namespace gcomm::codec
