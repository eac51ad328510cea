// A linear map in front of the quantiser (codec::TileMap): encoding with a map is mapping, then encoding, for
// every format, dtype and option; and back.
#include <algorithm>

#include "codec_harness.h"

namespace {

using namespace codec_test;

// Each element times a factor of its own place, and pairs turned by 90 degrees: linear, exactly invertible, and
// wrong in a place that is off by one.
class Turn final : public TileMap {
 public:
  void forward(std::uint64_t element, std::size_t count, float* x) const override {
    CHECK(element % kTile == 0, "element %llu", static_cast<unsigned long long>(element));
    for (std::size_t i = 0; i + 1 < count; i += 2) {
      const float a = x[i] * factor(element + i);
      const float b = x[i + 1] * factor(element + i + 1);
      x[i] = -b;
      x[i + 1] = a;
    }
    if (count % 2 == 1) x[count - 1] *= factor(element + count - 1);
  }
  void inverse(std::uint64_t element, std::size_t count, float* x) const override {
    CHECK(element % kTile == 0, "element %llu", static_cast<unsigned long long>(element));
    for (std::size_t i = 0; i + 1 < count; i += 2) {
      const float a = x[i + 1] / factor(element + i);
      const float b = -x[i] / factor(element + i + 1);
      x[i] = a;
      x[i + 1] = b;
    }
    if (count % 2 == 1) x[count - 1] /= factor(element + count - 1);
  }

 private:
  static float factor(std::uint64_t element) { return std::ldexp(1.0f, static_cast<int>(element % 11) - 5); }
};

const Turn kTurn;
constexpr std::size_t kPlace = 3 * kTile;  // of the range in its tensor
// A group is four tiles: less, one element more, two and a bit.
const std::size_t kCounts[] = {1, 1000, kTile, 4 * kTile - 1, 4 * kTile, 4 * kTile + 1, 9 * kTile + 77};

bool is_feedback(const BlockCodec& codec) { return codec.spec().error_feedback; }

struct Range {
  std::vector<std::uint8_t> wire;
  std::vector<float> residual;
  EncodeResult result;
};

Range encode(const BlockCodec& codec, const std::uint8_t* src, DType dtype, std::size_t count,
             const TileMap* map) {
  Range out;
  out.wire.resize(codec.max_encoded_bytes(count));
  out.residual.assign(count, 0.125f);
  EncodeJob job;
  job.src = src;
  job.dtype = dtype;
  job.count = count;
  job.map = map;
  job.residual = is_feedback(codec) ? out.residual.data() : nullptr;
  job.position = {kPlace, 5, 17};
  job.dst = out.wire.data();
  job.capacity = out.wire.size();
  out.result = codec.encode(job);
  CHECK(out.result.bytes == out.wire.size());
  return out;
}

std::vector<float> mapped(const Elements& x, bool zero) {
  std::vector<float> values = x.floats();
  for (float& value : values) value = zero && !std::isfinite(value) ? 0.0f : value;
  kTurn.forward(kPlace, values.size(), values.data());
  return values;
}

// The map's inverse, and one NaN.
void unmap(std::vector<float>& x) {
  kTurn.inverse(kPlace, x.size(), x.data());
  for (float& value : x) value = std::isnan(value) ? bits_float(kCanonicalNaN) : value;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_codec(const std::string& text, DType dtype, std::size_t count, Data data, Isa isa) {
  const auto codec = BlockCodec::make(parse_spec(text), isa);
  const std::string what = text + " " + dtype_info(dtype).name + " " + std::to_string(count);
  const bool zero = codec->spec().nonfinite == NonFinite::kZero;
  const Elements x(dtype, make_data(data, count, 3), 2);
  const std::vector<float> reference = mapped(x, zero);
  const Elements plain(DType::kF32, reference);

  const Range one = encode(*codec, x.data(), dtype, count, &kTurn);
  const Range two = encode(*codec, plain.data(), DType::kF32, count, nullptr);
  CHECK(one.wire == two.wire && same(one.residual, two.residual), "%s: encode", what.c_str());
  const std::vector<float> values = x.floats();
  const bool nonfinite = std::any_of(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  CHECK(one.result.nonfinite == nonfinite, "%s: says %d", what.c_str(), one.result.nonfinite);

  // Back: the inverse of what is decoded, Inf beyond the dtype.
  std::vector<float> back(count);
  codec->decode({one.wire.data(), one.wire.size()}, back.data(), DType::kF32, count);
  unmap(back);
  const Elements expected(dtype, back, 2);
  Elements out(dtype, count, 2);
  codec->decode_mapped({one.wire.data(), one.wire.size()}, out.data(), dtype, count, kTurn, kPlace);
  CHECK(out.same(expected) && out.margins_intact(), "%s: decode_mapped", what.c_str());

  // The owner's pass adds mapped values.
  for (int own = 0; own < 3; ++own) {
    for (const float divisor : {1.0f, 3.0f}) {
      const Encoded arrival{one.wire.data(), one.wire.size()};
      const Encoded arrivals[] = {arrival, arrival, arrival};
      ReduceJob job;
      job.own = x.data();
      job.dtype = dtype;
      job.arrivals = arrivals;
      job.ranks = 3;
      job.own_rank = own;
      job.count = count;
      job.map = &kTurn;
      job.divisor = divisor;
      job.position = {kPlace, 5, 18};
      std::vector<std::uint8_t> wire(one.wire.size()), wire2(one.wire.size());
      std::vector<float> residual(count, 0.25f), residual2(count, 0.25f);
      if (is_feedback(*codec)) job.residual = residual.data();
      job.dst = wire.data();
      job.capacity = wire.size();
      Elements sum(dtype, count, 2);
      job.out = sum.data();
      codec->reduce_encode(job);
      // The same without a map, in fp32.
      job.own = plain.data();
      job.dtype = DType::kF32;
      job.map = nullptr;
      job.dst = wire2.data();
      if (is_feedback(*codec)) job.residual = residual2.data();
      std::vector<float> decoded(count);
      job.out = decoded.data();
      codec->reduce_encode(job);
      unmap(decoded);
      CHECK(wire == wire2 && same(residual, residual2), "%s: reduce_encode, own rank %d", what.c_str(), own);
      CHECK(sum.same(Elements(dtype, decoded, 2)) && sum.margins_intact(), "%s: reduced by %d", what.c_str(),
            own);
    }
  }
}

// nonfinite=raise and propagate are the same bytes.
void policies() {
  const std::vector<float> x = make_data(Data::kSpecials, 5000, 3);
  const Elements elements(DType::kF32, x);
  const auto one = BlockCodec::make(parse_spec("int8"), Isa::kScalar);
  const auto two = BlockCodec::make(parse_spec("int8:nonfinite=raise"), Isa::kScalar);
  const Range a = encode(*one, elements.data(), DType::kF32, x.size(), &kTurn);
  const Range b = encode(*two, elements.data(), DType::kF32, x.size(), &kTurn);
  CHECK(a.wire == b.wire && a.result.nonfinite && b.result.nonfinite);
}

}  // namespace

int main() {
  for (const char* text :
       {"int8", "nvfp4", "fp8_e4m3:nonfinite=zero", "hadamard+int4", "int3:rounding=stochastic", "int4:ef=1",
        "hadamard+fp8_e5m2:ef=1:nonfinite=zero", "fp32", "mxfp4:scale=search"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const std::size_t count : kCounts) {
        check_codec(text, dtype, count, count % 2 == 0 ? Data::kNormal : Data::kSpecials,
                    count % 3 == 0 ? Isa::kScalar : best_isa());
      }
      check_codec(text, dtype, 5000, Data::kSpecials, best_isa());
    }
  }
  policies();
  return check::report("gift_tile_map");
}
