// Loops over elements as they lie in the caller's memory: loads, stores and sums in a dtype, and the formats
// that have no scale (which are the same three).
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cpu/driver.h"
#include "codec/cpu/tile_parts.h"

namespace gcomm::codec {

// T: Fp32, Bf16 or Fp16.
template <class T, class V>
struct ElementTile {
  using F = typename V::F;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kBytes = T::kCodeBytes;

  static void load(const void* src, std::size_t count, float* x) {
    const auto* in = static_cast<const std::uint8_t*>(src);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V::store(x + i, T::template load<V>(in + i * kBytes));
    }
    if (i < count) {
      V::store(x + i, load_tail(in + i * kBytes, count - i));
    }
  }

  static void add(const void* src, std::size_t count, float* x) {
    const auto* in = static_cast<const std::uint8_t*>(src);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      V::store(x + i, V::add(V::load(x + i), T::template load<V>(in + i * kBytes)));
    }
    if (i < count) {
      V::store(x + i, V::add(V::load(x + i), load_tail(in + i * kBytes, count - i)));
    }
  }

  static void store(const float* x, std::size_t count, void* dst) {
    auto* out = static_cast<std::uint8_t*>(dst);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      T::template store_any<V>(out + i * kBytes, V::load(x + i));
    }
    if (i < count) {
      alignas(64) std::uint8_t tail[kLanes * kBytes];
      T::template store_any<V>(tail, V::load(x + i));
      __builtin_memcpy(out + i * kBytes, tail, (count - i) * kBytes);
    }
  }

  static void overflow(float* x, std::size_t count) {
    if constexpr (T::kOverflow < 0x7F800000) {
      const auto inf = V::set(0x7F800000);
      for (std::size_t i = 0; i < count; i += kLanes) {
        const auto bits = V::bits(V::load(x + i));
        const auto a = V::and_(bits, V::set(0x7FFFFFFF));
        const auto infinite = V::or_(inf, V::xor_(bits, a));
        const auto beyond = V::greater(a, V::set(T::kOverflow - 1));
        const auto nan = V::greater(a, inf);
        V::store(x + i, V::real(V::select(nan, bits, V::select(beyond, infinite, bits))));
      }
    }
  }

  // As wire formats.
  static bool encode(const float* x, std::size_t count, std::uint8_t* dst, const Ahead& ahead) {
    if (count < kTile) {
      store(x, count, dst);
      auto top = V::set(0);
      for (std::size_t i = 0; i < count; i += kLanes) {
        top = V::max(top, magnitude(V::load(x + i)));
      }
      return V::any(V::greater(top, V::set(0x7F7FFFFF)));
    }
    constexpr std::size_t kStep = kLanes == 1 ? 1 : 32;
    bool special = false;
    for (std::size_t i = 0; i < kTile; i += kStep) {
      if constexpr (kLanes > 1) {
        fetch_ahead<V>(ahead, i);
      }
      auto top = V::set(0);
      for (std::size_t k = 0; k < kStep; k += kLanes) {
        top = V::max(top, magnitude(V::load(x + i + k)));
      }
      const bool here = V::any(V::greater(top, V::set(0x7F7FFFFF)));
      special |= here;
      for (std::size_t k = 0; k < kStep; k += kLanes) {
        std::uint8_t* out = dst + (i + k) * kBytes;
        here ? T::template store_any<V>(out, V::load(x + i + k))
             : T::template store<V>(out, V::load(x + i + k));
      }
    }
    return special;
  }

  static bool encode_and_decode(const float* x, std::size_t count, std::uint8_t* dst, float* out,
                                const Ahead& ahead) {
    const bool special = encode(x, count, dst, ahead);
    if (!special) {
      decode_to<Sink::kStore>(dst, count, out, out);
    }
    return special;
  }

  static void decode(const std::uint8_t* src, std::size_t count, Sink sink, const float* base, float* out) {
    switch (sink) {
      case Sink::kStore:
        return decode_to<Sink::kStore>(src, count, base, out);
      case Sink::kStream:
        return decode_to<Sink::kStream>(src, count, base, out);
      case Sink::kAdd:
        return decode_to<Sink::kAdd>(src, count, base, out);
    }
  }

 private:
  static GCOMM_HD typename V::I magnitude(F v) { return V::and_(V::bits(v), V::set(0x7FFFFFFF)); }

  static GCOMM_HD F load_tail(const std::uint8_t* in, std::size_t count) {
    alignas(64) std::uint8_t tail[kLanes * kBytes] = {};
    __builtin_memcpy(tail, in, count * kBytes);
    return T::template load<V>(tail);
  }

  // A sum makes its NaNs canonical itself.
  template <Sink sink>
  static GCOMM_HD F value(F v) {
    if constexpr (sink == Sink::kAdd) {
      return v;
    } else {
      return canonical<V>(v);
    }
  }

  template <Sink sink>
  static void decode_to(const std::uint8_t* src, std::size_t count, const float* base, float* out) {
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      if constexpr (sink == Sink::kAdd && kLanes > 1) {
        fetch_stream<V>(src + i * kBytes);
      }
      sink_value<V, sink>(value<sink>(T::template load<V>(src + i * kBytes)), base + i, out + i);
    }
    if (i < count) {
      sink_value<V, sink>(value<sink>(load_tail(src + i * kBytes, count - i)), base + i, out + i);
    }
    if constexpr (sink == Sink::kStream) {
      V::end_stream();
    }
  }
};

}  // namespace gcomm::codec
