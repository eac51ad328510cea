// A transform that belongs to a key and learns from what was reduced under it (docs/gift.md). The engine knows
// only how such a tensor travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace gcomm::collective {

class KeyTransform {
 public:
  // How the tensor travels in the call at hand; all ranks that share the digest take the same path.
  enum class Path : std::uint8_t {
    kDirect,  // as it is
    kMapped,  // through map(), tile by tile, both ways
    kSplit,  // its sides first, then the rest through map(); the way back is open once the sides' sums are here
    kCoded,  // in a codec of its own, block(), that knows the transform
    kWhole,  // through map() on its way out; put together by finish() once all of it has arrived
  };
  // A small tensor of fp32 that travels in front of the rest.
  struct Side {
    const codec::BlockCodec* block = nullptr;
    std::uint64_t count = 0;
    const float* input = nullptr;        // what is read from wire
    const std::uint8_t* wire = nullptr;  // encoded by prepare(); of fixed length
    float* output = nullptr;
  };

  virtual ~KeyTransform() = default;

  virtual Path path() const = 0;
  // Of everything that must be the same on all ranks.
  virtual std::uint64_t digest() const = 0;

  virtual std::size_t sides() const = 0;
  virtual Side side(std::size_t index) const = 0;
  // Reads a call's input. residual: null, or what the call adds to it. zero: non-finite elements count as zero.
  virtual void prepare(const void* input, DType dtype, const float* residual, bool zero) = 0;
  virtual const codec::TileMap& map() const = 0;
  virtual const codec::BlockCodec& block() const = 0;
  // kSplit: the sides' sums are in their outputs.
  virtual void sides_arrived() = 0;
  // A shard of the tensor: elements that one rank adds up.
  struct Shard {
    int owner = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // kWhole: elements of the shard up to `end`, and all that lie before them in it, are in whole, decoded.
  virtual void arrived(const float* whole, const Shard& shard, std::uint64_t end) = 0;
  // kWhole: all of the tensor is there. output may be whole.
  virtual void finish(float* whole, void* output, DType dtype) = 0;

  // The call succeeded, and `reduced` is what every rank has now. Returns whether settle() is due, on all ranks
  // alike. Where shared_bytes() is not 0 only the key's owner looks at `reduced`, and the others get what it
  // learned before they settle.
  virtual bool learn(const void* reduced, DType dtype, bool owner) = 0;
  virtual std::size_t shared_bytes() const = 0;
  virtual void share(std::uint8_t* dst) const = 0;
  virtual void accept(const std::uint8_t* src) = 0;  // throws kCodec
  // The same where every rank has a shard of the reduced tensor only: what it holds of the moments, as
  // part_numbers() numbers, and then all ranks' parts, one after the other.
  virtual std::size_t part_numbers() const { return 0; }
  virtual bool part_is_due() { return false; }
  virtual void learn_part(const void* shard, DType dtype, std::uint64_t begin, std::uint64_t count,
                          double* part) {
    (void)shard, (void)dtype, (void)begin, (void)count, (void)part;
  }
  virtual bool learn_parts(const double* parts, int ranks) {
    (void)parts, (void)ranks;
    return false;
  }
  // What was learned takes effect. residual: null, or the key's, to be carried over where what it is measured
  // in changes. In place.rank's shard it belongs to the sum, which was divided by place.divisor, elsewhere to
  // this rank's input.
  struct Place {
    int rank = 0;
    int ranks = 1;
    float divisor = 1.0f;
    std::uint64_t count = 0;   // elements of the tensor, or of each shard of a reduce_scatter,
    std::uint64_t stride = 0;  // which lie so far apart in the residual
  };
  virtual void settle(float* residual, const Place& place) = 0;

  // What was chosen and why, as a JSON object.
  virtual std::string report() const = 0;

  virtual std::uint64_t rows() const = 0;
  virtual std::uint64_t cols() const = 0;
  virtual void save(std::vector<std::uint8_t>& out) const = 0;
  // Throws kCodec, changing nothing, for bytes that save() did not write for this shape.
  virtual void load(const std::uint8_t* data, std::size_t bytes) = 0;
};

// saved: null, or what save() wrote for this shape; throws kCodec if it did not.
using TransformFactory = std::unique_ptr<KeyTransform> (*)(const codec::CodecSpec& spec, codec::Isa isa,
                                                           std::uint64_t rows, std::uint64_t cols,
                                                           const codec::Encoded* saved);

}  // namespace gcomm::collective
