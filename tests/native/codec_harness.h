// What the codec tests share: inputs of many sorts, and every driver that can run here by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/float.h"
#include "check.h"
#include "codec/block_codec.h"
#include "codec/codec.h"

#if defined(__x86_64__)
const gcomm::codec::Driver& emulated_avx512_driver();
#if defined(GCOMM_TEST_HAS_SIMDE)
const gcomm::codec::Driver& simde_avx512_driver();
#endif
#endif

namespace codec_test {

using namespace gcomm;
using namespace gcomm::codec;

struct NamedDriver {
  std::string name;
  Isa isa;
  const Driver* driver;
};

// All but scalar: what is compared with it.
inline std::vector<NamedDriver> vector_drivers() {
  std::vector<NamedDriver> drivers;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa_available(isa)) {
      drivers.push_back({isa_name(isa), isa, find_driver(isa)});
    }
  }
#if defined(__x86_64__)
  if (isa_available(Isa::kAvx2)) {  // the emulation's byte shuffles are AVX2's
    drivers.push_back({"avx512 emulated", Isa::kAvx512, &emulated_avx512_driver()});
#if defined(GCOMM_TEST_HAS_SIMDE)
    drivers.push_back({"avx512 by SIMDe", Isa::kAvx512, &simde_avx512_driver()});
#endif
  }
#endif
  return drivers;
}

inline std::shared_ptr<const BlockCodec> make(const std::string& text, const NamedDriver& driver) {
  return make_tile_codec(parse_spec(text), driver.isa, *driver.driver);
}
inline std::shared_ptr<const BlockCodec> make_scalar(const std::string& text) {
  return BlockCodec::make(parse_spec(text), Isa::kScalar);
}

enum class Data { kNormal, kBits, kWide, kDenormal, kHuge, kSparse, kSpecials, kGrid };
inline constexpr Data kAllData[] = {Data::kNormal, Data::kBits,   Data::kWide,     Data::kDenormal,
                                    Data::kHuge,   Data::kSparse, Data::kSpecials, Data::kGrid};

inline std::vector<float> make_data(Data kind, std::size_t count, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto random = [&] { return static_cast<std::uint32_t>(engine()); };
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& v : x) {
    const float z = normal(engine);
    switch (kind) {
      case Data::kNormal:
        v = z;
        break;
      case Data::kBits:
        v = bits_float(random());
        break;
      case Data::kWide:
        v = std::ldexp(z, static_cast<int>(random() % 200) - 100);
        break;
      case Data::kDenormal:
        v = bits_float(random() & 0x80FFFFFFu);
        break;
      case Data::kHuge:
        v = random() % 8 == 0 ? bits_float(0x7F7FFFFFu | (random() & 0x80000000u))
                              : bits_float((random() & 0x80FFFFFFu) | 0x7E000000u);
        break;
      case Data::kSparse:
        v = random() % 50 == 0 ? z : bits_float(random() & 0x80000000u);
        break;
      case Data::kSpecials:
        v = random() % 100 != 0 ? z
                                : bits_float(random() % 2 == 0 ? 0x7F800000u | (random() & 0x80000000u)
                                                               : 0x7F800000u | random());
        break;
      case Data::kGrid:  // many ties
        v = static_cast<float>(static_cast<int>(random() % 65) - 32) * 0.25f;
        break;
    }
    if (kind == Data::kHuge && (float_bits(v) & 0x7FFFFFFFu) >= 0x7F800000u) {
      v = bits_float(float_bits(v) & 0xFF7FFFFFu);
    }
  }
  return x;
}

// Elements of a dtype as bytes, at an address that is misaligned by `offset`.
class Elements {
 public:
  Elements(DType dtype, std::size_t count, std::size_t offset = 0)
      : dtype_(dtype),
        bytes_(count * dtype_size(dtype)),
        offset_(offset),
        storage_(bytes_ + offset + 64, 0xA5) {}

  Elements(DType dtype, const std::vector<float>& values, std::size_t offset = 0)
      : Elements(dtype, values.size(), offset) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(data() + 4 * i, &values[i], 4);
      } else {
        const std::uint16_t half = dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
        std::memcpy(data() + 2 * i, &half, 2);
      }
    }
  }

  std::uint8_t* data() { return storage_.data() + offset_; }
  const std::uint8_t* data() const { return storage_.data() + offset_; }
  std::size_t bytes() const { return bytes_; }
  bool same(const Elements& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }
  // Nothing was written before or behind.
  bool margins_intact() const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      if ((i < offset_ || i >= offset_ + bytes_) && storage_[i] != 0xA5) {
        return false;
      }
    }
    return true;
  }
  std::vector<float> floats() const {
    std::vector<float> values(bytes_ / dtype_size(dtype_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype_ == DType::kF32) {
        std::memcpy(&values[i], data() + 4 * i, 4);
      } else {
        std::uint16_t half;
        std::memcpy(&half, data() + 2 * i, 2);
        values[i] = dtype_ == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
      }
    }
    return values;
  }

 private:
  DType dtype_;
  std::size_t bytes_;
  std::size_t offset_;
  std::vector<std::uint8_t> storage_;
};

inline std::size_t first_difference(const void* a, const void* b, std::size_t bytes) {
  const auto* x = static_cast<const std::uint8_t*>(a);
  const auto* y = static_cast<const std::uint8_t*>(b);
  std::size_t i = 0;
  while (i < bytes && x[i] == y[i]) {
    ++i;
  }
  return i;
}

}  // namespace codec_test
