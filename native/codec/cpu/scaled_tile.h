// Encoding and decoding a tile of a format whose blocks have a scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cpu/driver.h"
#include "codec/cpu/tile_parts.h"

namespace gcomm::codec {

template <class T>
struct TileLayout {
  static constexpr std::size_t kBlocks = kTile / T::kBlock;
  static constexpr std::size_t kHeader = T::Scale::kTileScale ? 4 : 0;
  static GCOMM_HD std::size_t blocks(std::size_t count) { return (count + T::kBlock - 1) / T::kBlock; }
};

// The scales of a tile on their way to the wire.
template <class T>
struct BlockScales {
  static constexpr std::size_t kBlocks = TileLayout<T>::kBlocks;
  alignas(64) std::int32_t absmax[kBlocks];  // bits of the largest finite magnitude
  alignas(64) std::int32_t code[kBlocks];
  alignas(64) float inverse[kBlocks];
  float tile = 0.0f;
};

// Writes tile scale and block scales; returns where the codes go.
template <class T>
GCOMM_HD std::uint8_t* write_scales(const BlockScales<T>& scales, std::size_t blocks, std::uint8_t* dst) {
  if constexpr (T::Scale::kTileScale) {
    __builtin_memcpy(dst, &scales.tile, sizeof scales.tile);
    dst += sizeof scales.tile;
  }
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::uint16_t code = static_cast<std::uint16_t>(scales.code[b]);
    __builtin_memcpy(dst + b * T::Scale::kBytes, &code, T::Scale::kBytes);
  }
  return dst + blocks * T::Scale::kBytes;
}

// What the finite values of a block, and what else is in it, ask of its scale.
struct BlockContents {
  std::int32_t absmax;  // finite values
  bool inf;
  bool special;  // NaN or Inf
};
template <int block>
GCOMM_HD BlockContents inspect_block(const float* x) {
  BlockContents found{0, false, false};
  for (int j = 0; j < block; ++j) {
    const std::int32_t a = static_cast<std::int32_t>(float_bits(x[j]) & 0x7FFFFFFFu);
    if (a < 0x7F800000) {
      found.absmax = a > found.absmax ? a : found.absmax;
    } else {
      found.special = true;
      found.inf |= a == 0x7F800000;
    }
  }
  return found;
}

// The rules for a block that holds a NaN or an Inf, once its scale was chosen.
template <class T>
GCOMM_HD std::int32_t special_scale(const BlockContents& found, std::int32_t code) {
  if constexpr (!T::kHasNaN) {
    return T::Scale::kMarked;
  } else if constexpr (T::kHasInf) {
    return found.inf && found.absmax == 0 ? 0x0080 : code;  // 2^-126: an Inf times 0 would be no Inf
  } else {
    return code;
  }
}

template <class T, class V>
struct ScaledTile {
  using F = typename V::F;
  using I = typename V::I;
  using Layout = TileLayout<T>;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kBlock = T::kBlock;
  static constexpr std::size_t kBlocks = Layout::kBlocks;

  static bool encode(const float* x, std::size_t count, std::uint8_t* dst, const Ahead& ahead) {
    const std::size_t blocks = Layout::blocks(count);
    BlockScales<T> scales;
    const bool special = find_maxima(x, blocks, scales);
    BlockContents contents[kBlocks];
    if (special) {
      for (std::size_t b = 0; b < blocks; ++b) {
        contents[b] = inspect_block<T::kBlock>(x + b * kBlock);
        scales.absmax[b] = contents[b].absmax;
      }
    }
    choose_scales(blocks, scales);
    if (special) {
      for (std::size_t b = 0; b < blocks; ++b) {
        scales.code[b] = contents[b].special ? special_scale<T>(contents[b], scales.code[b]) : scales.code[b];
      }
    }
    std::uint8_t* out = write_scales<T>(scales, blocks, dst);
    const bool exception = (special && T::kHasNaN) || has_limited(blocks, scales);
    if constexpr (T::kPacked) {
      alignas(64) std::uint8_t codes[kTile];
      exception ? quantise<true>(x, blocks * kBlock, scales, codes, ahead)
                : quantise<false>(x, blocks * kBlock, scales, codes, ahead);
      for (std::size_t b = 0; b < blocks; ++b) {
        T::pack(codes + b * kBlock, out + b * T::kCodeBytes);
      }
    } else {
      exception ? quantise<true>(x, blocks * kBlock, scales, out, ahead)
                : quantise<false>(x, blocks * kBlock, scales, out, ahead);
    }
    if (special && !T::kHasNaN) {
      for (std::size_t b = 0; b < blocks; ++b) {
        if (contents[b].special) {
          __builtin_memset(out + b * T::kCodeBytes, 0, T::kCodeBytes);
        }
      }
    }
    return special;
  }

  static void decode(const std::uint8_t* src, std::size_t count, Sink sink, const float* base, float* out) {
    const std::size_t blocks = Layout::blocks(count);
    alignas(64) float scales[kBlocks];
    bool special = read_scales(src, blocks, scales);
    const std::uint8_t* codes = src + Layout::kHeader + blocks * T::Scale::kBytes;
    if constexpr (T::kPacked) {
      alignas(64) std::uint8_t levels[kTile];
      for (std::size_t b = 0; b < blocks; ++b) {
        T::unpack(codes + b * T::kCodeBytes, levels + b * kBlock);
      }
      dequantise<false>(levels, blocks, scales, sink, base, out);
    } else if constexpr (T::kHasNaN) {
      std::uint8_t top = 0;
      for (std::size_t i = 0; i < blocks * kBlock; ++i) {
        const std::uint8_t magnitude = codes[i] & 0x7F;
        top = magnitude > top ? magnitude : top;
      }
      special |= top >= T::kFirstSpecial;
      special ? dequantise<true>(codes, blocks, scales, sink, base, out)
              : dequantise<false>(codes, blocks, scales, sink, base, out);
    } else {
      dequantise<false>(codes, blocks, scales, sink, base, out);
    }
  }

 private:
  // Blocks are looked at kLanes at a time; those past the last one read the filling. Integer comparison of the bits:
  // a NaN or an Inf is larger than any number.
  static bool find_maxima(const float* x, std::size_t blocks, BlockScales<T>& scales) {
    auto top = V::set(0);
    for (std::size_t first = 0; first < blocks; first += kLanes) {
      I largest[kLanes];
      for (std::size_t b = 0; b < kLanes; ++b) {
        const float* block = x + (first + b) * kBlock;
        largest[b] = magnitude(block);
        for (std::size_t j = kLanes; j < kBlock; j += kLanes) {
          largest[b] = V::max(largest[b], magnitude(block + j));
        }
      }
      const auto found = V::maxima(largest);
      top = V::max(top, found);
      V::store(scales.absmax + first, found);
    }
    return V::any(V::greater(top, V::set(0x7F7FFFFF)));
  }

  static void choose_scales(std::size_t blocks, BlockScales<T>& scales) {
    if constexpr (T::Scale::kTileScale) {
      std::int32_t largest = 0;
      for (std::size_t b = 0; b < blocks; ++b) {
        largest = scales.absmax[b] > largest ? scales.absmax[b] : largest;
      }
      scales.tile = T::Scale::tile(bits_float(static_cast<std::uint32_t>(largest)));
    }
    for (std::size_t first = 0; first < blocks; first += kLanes) {
      const auto absmax = V::real(V::load(scales.absmax + first));
      const auto chosen = T::Scale::template choose<V>(absmax, V::set(T::kQMax), V::set(scales.tile));
      V::store(scales.code + first, chosen.code);
      V::store(scales.inverse + first, chosen.inverse);
    }
  }

  // Whether a block lies so high that its elements saturate early.
  static bool has_limited(std::size_t blocks, const BlockScales<T>& scales) {
    if constexpr (T::Scale::kHasLimit) {
      std::int32_t largest = 0;
      for (std::size_t b = 0; b < blocks; ++b) {
        largest = scales.code[b] > largest ? scales.code[b] : largest;
      }
      return largest >= T::Scale::kLimited;
    }
    return false;
  }

  // exceptions: also does what only NaN, Inf and limited blocks need.
  template <bool exceptions>
  static void quantise(const float* x, std::size_t count, const BlockScales<T>& scales, std::uint8_t* codes,
                       const Ahead& ahead) {
    for (std::size_t i = 0; i < count; i += V::kGroup) {
      if constexpr (kLanes > 1) {
        fetch_ahead<V>(ahead, i);
      }
      I group[V::kGroup / kLanes];
      for (std::size_t k = 0; k < V::kGroup; k += kLanes) {
        const F value = V::load(x + i + k);
        auto y = V::mul(value, V::set(scales.inverse[(i + k) / kBlock]));
        if constexpr (exceptions && T::Scale::kHasLimit) {
          y = T::Scale::template limit<V>(y, V::set(scales.code[(i + k) / kBlock]));
        }
        auto code = T::template encode<V>(y);
        if constexpr (exceptions && T::kHasNaN) {
          const auto a = V::and_(V::bits(value), V::set(0x7FFFFFFF));
          code = V::select(V::greater(a, V::set(0x7F7FFFFF)), T::template encode_special<V>(value), code);
        }
        group[k / kLanes] = code;
      }
      V::store_bytes(codes + i, group);
    }
  }

  // Returns whether some scale is no finite number; such a scale becomes a NaN.
  static bool read_scales(const std::uint8_t* src, std::size_t blocks, float* scales) {
    float tile = 1.0f;
    if constexpr (T::Scale::kTileScale) {
      __builtin_memcpy(&tile, src, sizeof tile);
      src += sizeof tile;
    }
    std::uint8_t stored[kBlocks * T::Scale::kBytes];
    __builtin_memcpy(stored, src, blocks * T::Scale::kBytes);
    if (blocks < kBlocks) {
      __builtin_memset(stored + blocks * T::Scale::kBytes, 0, (kBlocks - blocks) * T::Scale::kBytes);
    }
    bool special = false;
    for (std::size_t first = 0; first < blocks; first += kLanes) {
      I code;
      if constexpr (T::Scale::kBytes == 2) {
        code = V::load_u16(stored + first * 2);
      } else {
        code = V::load_u8(stored + first);
      }
      const auto value = T::Scale::template value<V>(code, V::set(tile));
      const auto bad = V::greater(V::and_(V::bits(value), V::set(0x7FFFFFFF)), V::set(0x7F7FFFFF));
      special |= V::any(bad);
      V::store(scales + first, V::select(bad, V::real(V::set(0x7FC00000)), value));
    }
    return special;
  }

  template <bool special>
  static void dequantise(const std::uint8_t* levels, std::size_t blocks, const float* scales, Sink sink,
                         const float* base, float* out) {
    switch (sink) {
      case Sink::kStore:
        return dequantise_to<special, Sink::kStore>(levels, blocks, scales, base, out);
      case Sink::kStream:
        return dequantise_to<special, Sink::kStream>(levels, blocks, scales, base, out);
      case Sink::kAdd:
        return dequantise_to<special, Sink::kAdd>(levels, blocks, scales, base, out);
    }
  }

  template <bool special, Sink sink>
  static void dequantise_to(const std::uint8_t* levels, std::size_t blocks, const float* scales, const float* base,
                            float* out) {
    for (std::size_t b = 0; b < blocks; ++b) {
      const F scale = V::set(scales[b]);
      for (std::size_t i = b * kBlock; i < (b + 1) * kBlock; i += kLanes) {
        const I level = V::load_i8(levels + i);
        if constexpr (special) {
          sink_value<V, sink>(canonical<V>(V::mul(T::template decode_any<V>(level), scale)), base + i, out + i);
        } else {
          sink_value<V, sink>(V::mul(T::template decode<V>(level), scale), base + i, out + i);
        }
      }
    }
  }

  static GCOMM_HD I magnitude(const float* x) { return V::and_(V::bits(V::load(x)), V::set(0x7FFFFFFF)); }
};

}  // namespace gcomm::codec
