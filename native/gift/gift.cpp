#include "gift/gift.h"

#include <algorithm>

#include "gift/bytes.h"
#include "gift/spectral.h"
#include "gift/weighted.h"

namespace gcomm::gift {

namespace {

// Whether that many bytes could be what is saved for a matrix of this shape: told before anything of its size
// is allocated.
bool could_hold(const codec::GiftSpec& gift, std::uint64_t rows, std::uint64_t cols, std::uint64_t bytes) {
  if (rows == 0 || cols == 0) return false;
  const std::uint64_t numbers = bytes / sizeof(float);
  const bool has_factors = rows <= numbers && cols <= numbers;
  switch (gift.geometry) {
    case codec::GiftSpec::Geometry::kSpectral:
      return has_factors || !SpectralKey::has_basis(rows, cols);
    case codec::GiftSpec::Geometry::kFactored:
      return has_factors;
    case codec::GiftSpec::Geometry::kElementwise:
      return has_factors && rows <= numbers / cols;
  }
  return false;
}

}  // namespace

std::unique_ptr<collective::KeyTransform> make_key_transform(const codec::CodecSpec& spec, codec::Isa isa,
                                                             std::uint64_t rows, std::uint64_t cols,
                                                             const codec::Encoded* saved) {
  if (saved != nullptr && !could_hold(spec.gift, rows, cols, saved->bytes)) Fields::broken();
  std::unique_ptr<collective::KeyTransform> key;
  if (spec.gift.geometry == codec::GiftSpec::Geometry::kSpectral) {
    key = std::make_unique<SpectralKey>(spec, isa, rows, cols);
  } else {
    key = std::make_unique<WeightedKey>(spec, rows, cols);
  }
  if (saved != nullptr) key->load(saved->data, saved->bytes);
  return key;
}

}  // namespace gcomm::gift
