// A basis as bytes, and the digest of it.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "gift/basis.h"

namespace gcomm::gift {
namespace {

constexpr std::uint32_t kMagic = 0x53414247u;  // "GBAS"
constexpr std::uint32_t kVersion = 1;

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kCodec, "saved basis: " + text); }

struct Hasher {
  Fnv64 hash;
  void bytes(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      hash.byte(static_cast<std::uint8_t>(value >> (8 * i)));
    }
  }
};
struct Writer {
  std::uint8_t* at;
  void bytes(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      *at++ = static_cast<std::uint8_t>(value >> (8 * i));
    }
  }
};
struct Reader {
  const std::uint8_t* at;
  std::uint64_t bytes(int count) {
    std::uint64_t value = 0;
    for (int i = 0; i < count; ++i) {
      value |= std::uint64_t{*at++} << (8 * i);
    }
    return value;
  }
  double real64() {
    const double value = __builtin_bit_cast(double, bytes(8));
    if (!std::isfinite(value) || value < 0.0) {
      refuse("a singular value or norm is negative or not finite");
    }
    return value;
  }
  // A skinny matrix of `rank` columns into one of `padded`; only the first `found` may be other than zero.
  void skinny(float* dst, std::size_t rows, std::size_t rank, std::size_t padded, std::size_t found) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < padded; ++k) {
        const float x = k < rank ? __builtin_bit_cast(float, static_cast<std::uint32_t>(bytes(4))) : 0.0f;
        if (!std::isfinite(x) || (k >= found && x != 0.0f)) {
          refuse("an entry of a direction is not finite, or beyond the rank");
        }
        dst[i * padded + k] = x;
      }
    }
  }
};

}  // namespace

template <class Sink>
void Basis::write(Sink& sink) const {
  for (const std::size_t number : {rows_, cols_, max_rank_, rank()}) {
    sink.bytes(number, 8);
  }
  sink.bytes(__builtin_bit_cast(std::uint64_t, squared_norm_), 8);
  for (std::size_t k = 0; k < max_rank_; ++k) {
    sink.bytes(__builtin_bit_cast(std::uint64_t, k < rank() ? values_[k] : 0.0), 8);
  }
  for (const auto& [data, rows] : {std::pair{u(), rows_}, std::pair{v(), cols_}}) {
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < max_rank_; ++k) {
        sink.bytes(__builtin_bit_cast(std::uint32_t, data[i * padded() + k]), 4);
      }
    }
  }
}

std::uint64_t Basis::compute_digest() const {
  Hasher hasher;
  write(hasher);
  return hasher.hash.value();
}

std::size_t Basis::saved_bytes() const noexcept {
  return 8 + 4 * 8 + 8 + 8 * max_rank_ + 4 * (rows_ + cols_) * max_rank_ + 8;
}

void Basis::save(std::uint8_t* dst) const {
  Writer writer{dst};
  writer.bytes(kMagic, 4);
  writer.bytes(kVersion, 4);
  write(writer);
  writer.bytes(digest_, 8);
}

void Basis::load(const std::uint8_t* src, std::size_t bytes) {
  if (bytes != saved_bytes()) {
    refuse(std::to_string(bytes) + " bytes; expected " + std::to_string(saved_bytes()));
  }
  Reader reader{src};
  if (reader.bytes(4) != kMagic || reader.bytes(4) != kVersion) {
    refuse("not a basis of version 1");
  }
  for (const std::size_t expected : {rows_, cols_, max_rank_}) {
    const std::uint64_t number = reader.bytes(8);
    if (number != expected) {
      refuse("of rows, columns or rank, " + std::to_string(number) + "; expected " + std::to_string(expected));
    }
  }
  const std::uint64_t found = reader.bytes(8);
  if (found > max_rank_) {
    refuse(std::to_string(found) + " directions; expected at most " + std::to_string(max_rank_));
  }
  Basis other(rows_, cols_, max_rank_);
  other.squared_norm_ = reader.real64();
  for (std::size_t k = 0; k < max_rank_; ++k) {
    const double value = reader.real64();
    const bool right = k >= found ? value == 0.0 : value > 0.0 && (k == 0 || value <= other.values_[k - 1]);
    if (!right) {
      refuse("singular values don't descend");
    }
    if (k < found) {
      other.values_.push_back(value);
    }
  }
  reader.skinny(floats(other.u_), rows_, max_rank_, padded(), found);
  reader.skinny(floats(other.v_), cols_, max_rank_, padded(), found);
  other.digest_ = other.compute_digest();
  if (reader.bytes(8) != other.digest_) {
    refuse("the digest disagrees");
  }
  other.work_.swap(work_);
  *this = std::move(other);
}

}  // namespace gcomm::gift
