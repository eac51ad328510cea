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
  alignas(64) float value[kBlocks];  // what a decoder makes of code
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
    BlockScales<T> scales;
    const std::size_t blocks = Layout::blocks(count);
    if (find_maxima(x, blocks, scales)) {
      encode_special(x, blocks, scales, dst);
      return true;
    }
    choose_scales(blocks, scales);
    std::uint8_t* codes = write_scales<T>(scales, blocks, dst);
    has_limited(blocks, scales) ? write_codes<true, false>(x, blocks, scales, codes, nullptr, ahead)
                                : write_codes<false, false>(x, blocks, scales, codes, nullptr, ahead);
    return false;
  }

  static bool encode_and_decode(const float* x, std::size_t count, std::uint8_t* dst, float* out,
                                const Ahead& ahead) {
    BlockScales<T> scales;
    const std::size_t blocks = Layout::blocks(count);
    if (find_maxima(x, blocks, scales)) {
      encode_special(x, blocks, scales, dst);
      return true;
    }
    choose_scales(blocks, scales);
    std::uint8_t* codes = write_scales<T>(scales, blocks, dst);
    has_limited(blocks, scales) ? write_codes<true, true>(x, blocks, scales, codes, out, ahead)
                                : write_codes<false, true>(x, blocks, scales, codes, out, ahead);
    return false;
  }

  static void decode(const std::uint8_t* src, std::size_t count, Sink sink, const float* base, float* out) {
    const std::size_t blocks = Layout::blocks(count);
    alignas(64) float scales[kBlocks];
    bool special = read_scales(src, blocks, scales);
    const std::uint8_t* codes = src + Layout::kHeader + blocks * T::Scale::kBytes;
    if constexpr (T::kPacked) {
      alignas(64) std::uint8_t levels[kTile];
      T::template unpack<V>(codes, blocks * kBlock, levels);
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
  // A tile with a NaN or an Inf in it.
  static void encode_special(const float* x, std::size_t blocks, BlockScales<T>& scales, std::uint8_t* dst) {
    BlockContents contents[kBlocks];
    for (std::size_t b = 0; b < blocks; ++b) {
      contents[b] = inspect_block<T::kBlock>(x + b * kBlock);
      scales.absmax[b] = contents[b].absmax;
    }
    choose_scales(blocks, scales);
    for (std::size_t b = 0; b < blocks; ++b) {
      scales.code[b] = contents[b].special ? special_scale<T>(contents[b], scales.code[b]) : scales.code[b];
    }
    std::uint8_t* codes = write_scales<T>(scales, blocks, dst);
    write_codes<true, false>(x, blocks, scales, codes, nullptr, {});
    for (std::size_t b = 0; b < blocks && !T::kHasNaN; ++b) {
      if (contents[b].special) {
        __builtin_memset(codes + b * T::kCodeBytes, 0, T::kCodeBytes);
      }
    }
  }

  // Blocks are looked at kLanes at a time; those past the last one read the filling. Integer comparison of the
  // bits: a NaN or an Inf is larger than any number.
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
      V::store(scales.value + first, T::Scale::template value<V>(chosen.code, V::set(scales.tile)));
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

  // exceptions: also does what only NaN, Inf and limited blocks need. keeps: decoded values go to `values`.
  template <bool exceptions, bool keeps>
  static void write_codes(const float* x, std::size_t blocks, const BlockScales<T>& scales, std::uint8_t* dst,
                          float* values, const Ahead& ahead) {
    if constexpr (T::kPacked) {
      alignas(64) std::uint8_t codes[kTile];
      quantise<exceptions, keeps>(x, blocks * kBlock, scales, codes, values, ahead);
      T::template pack<V>(codes, blocks * kBlock, dst);
    } else {
      quantise<exceptions, keeps>(x, blocks * kBlock, scales, dst, values, ahead);
    }
  }

  template <bool exceptions, bool keeps>
  static GCOMM_HD void quantise(const float* x, std::size_t count, const BlockScales<T>& scales,
                                std::uint8_t* codes, float* values, const Ahead& ahead) {
    for (std::size_t i = 0; i < count; i += V::kGroup) {
      if constexpr (kLanes > 1) {
        fetch_ahead<V>(ahead, i);
      }
      I group[V::kGroup / kLanes];
      for (std::size_t k = 0; k < V::kGroup; k += kLanes) {
        const std::size_t block = (i + k) / kBlock;
        const F v = V::load(x + i + k);
        F y = V::mul(v, V::set(scales.inverse[block]));
        if constexpr (exceptions && T::Scale::kHasLimit) {
          y = T::Scale::template limit<V>(y, V::set(scales.code[block]));
        }
        F value;
        I code = T::template encode<V>(y, value);
        if constexpr (exceptions && T::kHasNaN) {
          const auto a = V::and_(V::bits(v), V::set(0x7FFFFFFF));
          code = V::select(V::greater(a, V::set(0x7F7FFFFF)), T::template encode_special<V>(v), code);
        }
        if constexpr (keeps) {
          V::store(values + i + k, V::mul(value, V::set(scales.value[block])));
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
  static void dequantise_to(const std::uint8_t* levels, std::size_t blocks, const float* scales,
                            const float* base, float* out) {
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
    if constexpr (sink == Sink::kStream) {
      V::end_stream();
    }
  }

  static GCOMM_HD I magnitude(const float* x) { return V::and_(V::bits(V::load(x)), V::set(0x7FFFFFFF)); }
};

}  // namespace gcomm::codec
