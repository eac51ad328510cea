// Small parts that the tile loops share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float.h"
#include "codec/cpu/driver.h"

namespace gcomm::codec {

// For element i of a tile, one call every 32 elements: asks for the next tile's bytes at the same place.
template <class V>
GCOMM_HD void fetch_ahead(const Ahead& ahead, std::size_t i) {
  const std::size_t step = ahead.size / (kTile / 32);
  for (std::size_t byte = 0; byte < step; byte += 64) {
    V::prefetch(ahead.bytes + i / 32 * step + byte);
  }
}

template <class V>
GCOMM_HD typename V::F canonical(typename V::F v) {
  return V::select(V::is_nan(v), V::real(V::set(0x7FC00000)), v);
}

// For what streams through memory beside something else: measured, the processor's own prefetching leaves a
// tenth of the speed behind. Past the end of the range nothing is touched, only asked for.
template <class V>
GCOMM_HD void fetch_stream(const void* at) {
  constexpr std::uintptr_t kBytesAhead = 2048;
  V::prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) + kBytesAhead));
}

template <class V, Sink sink>
GCOMM_HD void sink_value(typename V::F v, const float* base, float* out) {
  if constexpr (sink == Sink::kAdd) {
    if constexpr (V::kLanes > 1) {
      fetch_stream<V>(base);
    }
    V::store(out, canonical<V>(V::add(V::load(base), v)));
  } else if constexpr (sink == Sink::kStream) {
    V::stream(out, v);
  } else {
    V::store(out, v);
  }
}

}  // namespace gcomm::codec
