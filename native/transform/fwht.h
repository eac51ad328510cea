// The stages of the Hadamard transform in the lanes of an instruction set (codec/formats/lanes_scalar.h tells
// what V offers). Strides grow from 1 to size / 2, whatever the lanes, so every V gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hd.h"
#include "transform/hadamard.h"

namespace gcomm::transform {

template <class V>
struct Fwht {
  using F = typename V::F;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kGroup = 64;  // what is transformed in registers
  static constexpr std::size_t kVectors = kGroup / kLanes;

  static void forward(const float* x, float* out, std::size_t count, int size, const std::uint32_t* signs) {
    run<true>(x, out, count, size, signs);
  }
  static void inverse(const float* x, float* out, std::size_t count, int size, const std::uint32_t* signs) {
    run<false>(x, out, count, size, signs);
  }

 private:
  // Forward: signs, stages, factor. Inverse: stages, factor, signs.
  template <bool forward>
  static GCOMM_HD void run(const float* x, float* out, std::size_t count, int size,
                           const std::uint32_t* signs) {
    const std::size_t length = static_cast<std::size_t>(size);
    const F factor = V::set(hadamard_factor(size));
    for (std::size_t at = 0; at < count; at += kGroup) {
      F v[kVectors];
      for (std::size_t k = 0; k < kVectors; ++k) {
        v[k] = V::load(x + at + k * kLanes);
        if constexpr (forward) {
          v[k] = flip(v[k], signs, at + k * kLanes);
        }
        v[k] = V::butterflies(v[k]);
      }
      across<1>(v);
      for (std::size_t k = 0; k < kVectors; ++k) {
        if (length == kGroup) {
          v[k] = V::mul(v[k], factor);
          if constexpr (!forward) {
            v[k] = canonical(flip(v[k], signs, at + k * kLanes));
          }
        }
        V::store(out + at + k * kLanes, v[k]);
      }
    }
    for (std::size_t stride = kGroup; stride < length; stride *= 2) {
      for (std::size_t at = 0; at < count; at += 2 * stride) {
        for (std::size_t j = at; j < at + stride; j += kLanes) {
          F low = V::load(out + j);
          F high = V::load(out + j + stride);
          const F sum = V::add(low, high);
          high = V::sub(low, high);
          low = sum;
          if (2 * stride == length) {
            low = V::mul(low, factor);
            high = V::mul(high, factor);
            if constexpr (!forward) {
              low = canonical(flip(low, signs, j));
              high = canonical(flip(high, signs, j + stride));
            }
          }
          V::store(out + j, low);
          V::store(out + j + stride, high);
        }
      }
    }
  }

  // Strides from kLanes to 32: between vectors. A recursion, so that every index is a constant and v stays in
  // registers.
  template <std::size_t stride>
  static GCOMM_HD void across(F* v) {
    if constexpr (stride < kVectors) {
#pragma GCC unroll 8
      for (std::size_t pair = 0; pair < kVectors / 2; ++pair) {
        const std::size_t j = pair / stride * 2 * stride + pair % stride;
        const F sum = V::add(v[j], v[j + stride]);
        v[j + stride] = V::sub(v[j], v[j + stride]);
        v[j] = sum;
      }
      across<2 * stride>(v);
    }
  }

  static GCOMM_HD F canonical(F v) { return V::select(V::is_nan(v), V::real(V::set(0x7FC00000)), v); }

  static GCOMM_HD F flip(F v, const std::uint32_t* signs, std::size_t i) {
    return V::real(V::xor_(V::bits(v), V::sign_bits(signs[i / 32], static_cast<int>(i % 32))));
  }
};

}  // namespace gcomm::transform
