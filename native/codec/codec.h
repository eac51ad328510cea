// The codec room's face to the rest: text -> spec -> BlockCodec, a table of drivers for one wire format, one
// transform, one rounding and one instruction set.
//
// docs/wire-format.md says which bits come out; nothing about them depends on the driver. A BlockCodec is
// immutable, shared between threads, and allocates nothing after it was made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "codec/tile.h"

namespace gcomm::codec {

enum class Rounding : std::uint8_t { kNearest, kStochastic };
enum class ScaleRule : std::uint8_t { kAbsMax, kSearch };
enum class NonFinite : std::uint8_t { kPropagate, kRaise, kZero };
enum class TransformKind : std::uint8_t { kIdentity, kHadamard };

// docs/gift.md. What a key learns and how it is used; the codec room only reads and writes it.
struct GiftSpec {
  enum class Geometry : std::uint8_t { kSpectral, kFactored, kElementwise };
  enum class Mode : std::uint8_t { kAuto, kScale, kSplit, kRows };

  bool on = false;
  Geometry geometry = Geometry::kSpectral;
  Mode mode = Mode::kAuto;
  int rank = 0;           // 0: chosen from the spectrum
  int refresh = 10;       // calls
  int alpha_eighths = 3;  // d_i = (s_rest / s_i)^alpha, scale mode
  int side = -1;          // format of the coordinates sent apart, index into formats(); -1: by mode
  bool broadcast_basis = false;
};

struct CodecSpec {
  int format = 0;  // index into formats()
  GiftSpec gift;
  TransformKind transform = TransformKind::kIdentity;
  int hadamard_size = 64;
  Rounding rounding = Rounding::kNearest;
  ScaleRule scale = ScaleRule::kAbsMax;
  NonFinite nonfinite = NonFinite::kPropagate;
  bool error_feedback = false;
  bool payload_crc = false;
  std::int64_t min_bytes = -1;  // -1: the engine's default; 0: never the raw path
  std::uint64_t seed = 0;

  // The shortest text that parses to the same spec; options in a fixed order, defaults left out.
  std::string text() const;
};

// Throws Error(kCodec) that names the unknown or ill-placed part and lists what is accepted.
CodecSpec parse_spec(std::string_view text);

struct FormatInfo {
  const char* name;
  std::size_t block;        // elements that share a scale (1: none)
  double bits_per_element;  // of a full tile, scales included
  bool has_nan;             // the element can say NaN; otherwise a non-finite value marks its block
  bool fixed_length;
};
const std::vector<FormatInfo>& formats();  // in the order of codec/formats/list.h

enum class Isa : std::uint8_t { kScalar, kAvx2, kAvx512 };
const char* isa_name(Isa isa);
bool isa_available(Isa isa);           // compiled in, and this processor has it
Isa parse_isa(std::string_view name);  // throws Error(kInvalid)
Isa best_isa();

// Where the Philox generator stands for the first element of a range (stochastic rounding only).
struct StreamPosition {
  std::uint64_t element = 0;  // index of the first element in its tensor; a multiple of kTile
  std::uint32_t call = 0;     // the key's call counter
  std::uint32_t stream = 0;   // stream_id()
};
// stream_id(key, source): source is the rank whose own input is encoded, or kSumSource for a reduced value.
inline constexpr std::int64_t kSumSource = -1;
std::uint32_t stream_id(std::string_view key, std::int64_t source);

struct EncodeResult {
  std::size_t bytes = 0;
  bool nonfinite = false;  // the range held a NaN or an Inf (before any policy)
};

// A linear map between a tensor's elements and what is coded in their place (GIFT). Both work in place on a few
// tiles at a time, x being the elements [element, element + count) of the tensor, element a multiple of kTile.
class TileMap {
 public:
  virtual ~TileMap() = default;
  virtual void forward(std::uint64_t element, std::size_t count, float* x) const = 0;
  virtual void inverse(std::uint64_t element, std::size_t count, float* x) const = 0;
};

struct EncodeJob {
  const void* src = nullptr;
  DType dtype = DType::kF32;
  std::size_t count = 0;
  const TileMap* map = nullptr;  // may be null; takes its place in the tensor from position.element
  // Error feedback, or null: src + residual is encoded, and what was lost is left in residual (count floats).
  float* residual = nullptr;
  StreamPosition position;
  std::uint8_t* dst = nullptr;  // no alignment needed
  std::size_t capacity = 0;     // at least max_encoded_bytes(count)
};

// Outputs from this size on are decoded past the caches.
inline constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

struct Encoded {
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

// The owner's pass over its shard, tile by tile: value = x_0 + x_1 + ... in rank order (the first one starts
// the sum; arrivals decoded, own as it is), / divisor, Inf where it is beyond dtype; encoded once into dst;
// and what everybody will decode from dst written to out.
struct ReduceJob {
  const void* own = nullptr;
  DType dtype = DType::kF32;          // of own and out
  const Encoded* arrivals = nullptr;  // `ranks` entries; the one at own_rank is ignored
  int ranks = 0;
  int own_rank = 0;
  std::size_t count = 0;
  const TileMap* map = nullptr;  // may be null; else arrivals, sum and residual are of mapped values
  float divisor = 1.0f;
  float* residual = nullptr;
  StreamPosition position;
  std::uint8_t* dst = nullptr;  // null: out takes the sum itself, not encoded (reduce_scatter)
  std::size_t capacity = 0;
  void* out = nullptr;  // may be own; may be null where dst is not
};

class BlockCodec {
 public:
  // Throws Error(kUnsupported) when the ISA is not available here.
  static std::shared_ptr<const BlockCodec> make(const CodecSpec& spec, Isa isa);
  virtual ~BlockCodec() = default;

  const CodecSpec& spec() const noexcept { return spec_; }
  const FormatInfo& format() const { return formats()[static_cast<std::size_t>(spec_.format)]; }
  Isa isa() const noexcept { return isa_; }
  // What a cut of a tensor must be a multiple of, in elements: whatever is coded together.
  virtual std::size_t granule() const { return kTile; }
  // Whether a range's encoded length follows from its count.
  virtual bool fixed_length() const { return format().fixed_length; }

  // Exact for a fixed-length format, else a bound.
  virtual std::size_t max_encoded_bytes(std::size_t count) const = 0;

  virtual EncodeResult encode(const EncodeJob& job) const = 0;
  // These throw Error(kCodec) for a length that cannot be right; any bytes of the right length decode to
  // something without reading or writing out of bounds. A finite value beyond dtype saturates.
  virtual void decode(Encoded in, void* dst, DType dtype, std::size_t count) const = 0;
  // decode(), then map.inverse(); `element` is the place of the range in its tensor. Here a value beyond dtype
  // becomes Inf, since only now it shows that the sum was.
  virtual void decode_mapped(Encoded in, void* dst, DType dtype, std::size_t count, const TileMap& map,
                             std::uint64_t element) const;
  // decode() for a piece of an output of kStreamBytes or more, which no cache will keep: the values are written
  // past the caches. (decode() does so by itself when it is given that much at once.)
  virtual void decode_streaming(Encoded in, void* dst, DType dtype, std::size_t count) const {
    decode(in, dst, dtype, count);
  }
  virtual void decode_accumulate(Encoded in, float* acc, std::size_t count) const = 0;
  virtual EncodeResult reduce_encode(const ReduceJob& job) const = 0;

 protected:
  BlockCodec(const CodecSpec& spec, Isa isa) : spec_(spec), isa_(isa) {}

 private:
  CodecSpec spec_;
  Isa isa_;
};

// The raw path and codec-less sums: out = (x_0 + x_1 + ...) / divisor in rank order, in fp32, one canonical
// NaN, rounded to dtype (Inf beyond it). Returns whether any *input* was non-finite. `zero` replaces
// non-finite inputs by zero first. out may be one of the inputs.
bool raw_reduce(const void* const* inputs, int ranks, DType dtype, std::size_t count, float divisor, bool zero,
                void* out, Isa isa);

}  // namespace gcomm::codec
