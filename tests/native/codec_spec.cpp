// Codec text, sizes, and what is refused.
#include <algorithm>

#include "base/error.h"
#include "codec_harness.h"

namespace {

using namespace codec_test;

void texts_round_trip() {
  const struct {
    const char* given;
    const char* canonical;
  } cases[] = {
      {"fp8_e4m3", "fp8_e4m3"},
      {"hadamard+int4", "hadamard+int4"},
      {"hadamard+int4:size=64", "hadamard+int4"},
      {"hadamard+int4:seed=7:size=256", "hadamard+int4:size=256:seed=7"},
      {"nvfp4:ef=1:scale=search:rounding=stochastic", "nvfp4:rounding=stochastic:scale=search:ef=1"},
      {"int8:rounding=nearest:scale=absmax:nonfinite=propagate:ef=0:crc=0:seed=0", "int8"},
      {"int8:min_bytes=0", "int8:min_bytes=0"},
      {"gift+nvfp4:rank=auto:refresh=10:mode=auto:alpha=0.375:geometry=spectral", "gift+nvfp4"},
      {"gift+hadamard+int4:side=int6:mode=rows:rank=64", "gift+hadamard+int4:mode=rows:rank=64:side=int6"},
      {"gift+nvfp4:mode=scale:alpha=0.5:refresh=1:broadcast_basis=1:ef=1",
       "gift+nvfp4:mode=scale:refresh=1:alpha=0.5:broadcast_basis=1:ef=1"},
      {"gift+int8:geometry=factored", "gift+int8:geometry=factored"},
      {"bf16:nonfinite=raise:crc=1:min_bytes=65536", "bf16:nonfinite=raise:crc=1:min_bytes=65536"},
      {"int2:nonfinite=zero:seed=18446744073709551615", "int2:nonfinite=zero:seed=18446744073709551615"},
  };
  for (const auto& entry : cases) {
    const CodecSpec spec = parse_spec(entry.given);
    CHECK(spec.text() == entry.canonical, "%s gave %s", entry.given, spec.text().c_str());
    CHECK(parse_spec(spec.text()).text() == entry.canonical);
  }
  const CodecSpec spec = parse_spec(
      "hadamard+nvfp4:size=128:rounding=stochastic:scale=search:nonfinite=raise:ef=1:crc=1"
      ":min_bytes=5:seed=6");
  CHECK(std::string(formats()[static_cast<std::size_t>(spec.format)].name) == "nvfp4");
  CHECK(spec.transform == TransformKind::kHadamard && spec.hadamard_size == 128);
  CHECK(spec.rounding == Rounding::kStochastic && spec.scale == ScaleRule::kSearch);
  CHECK(spec.nonfinite == NonFinite::kRaise && spec.error_feedback && spec.payload_crc);
  CHECK(spec.min_bytes == 5 && spec.seed == 6);
}

// The text must say which part was not understood.
void bad_texts_are_named() {
  const struct {
    const char* given;
    const char* says;
  } cases[] = {
      {"", "unknown format ''"},
      {"fp8", "unknown format 'fp8'; expected one of fp32, bf16, fp16, fp8_e4m3"},
      {"INT8", "unknown format 'INT8'"},
      {"int8 ", "unknown format 'int8 '"},
      {"lift+int8", "unknown transform 'lift'; expected hadamard or gift"},
      {"gift+gift+int8", "transforms are hadamard, gift, or gift+hadamard, in this order"},
      {"hadamard+gift+int8", "transforms are hadamard, gift, or gift+hadamard, in this order"},
      {"int8:rank=4", "rank belongs to the gift transform"},
      {"gift+int8:rank=0", "rank=0: expected 1 to 256"},
      {"gift+int8:mode=best", "mode=best: expected auto, scale, split or rows"},
      {"gift+int8:alpha=0.3", "alpha=0.3: expected 0.125, 0.25"},
      {"gift+int8:refresh=0", "refresh=0: expected 1 to"},
      {"gift+int8:geometry=flat", "geometry=flat: expected spectral, factored or elementwise"},
      {"gift+int8:geometry=factored:rank=4", "belong to geometry=spectral"},
      {"gift+int8:mode=scale:side=bf16", "side belongs to mode=split and mode=rows"},
      {"gift+int8:mode=rows:alpha=0.5", "alpha belongs to mode=scale"},
      {"+int8", "unknown transform ''"},
      {"hadamard+", "unknown format ''"},
      {"hadamard+hadamard+int8", "transforms are hadamard, gift, or gift+hadamard, in this order"},
      {"int8:", "expected option=value"},
      {"int8:seed", "expected option=value, not 'seed'"},
      {"int8::seed=1", "expected option=value"},
      {"int8:seed=1:", "expected option=value"},
      {"int8:rate=1", "unknown option 'rate'"},
      {"int8:size=64", "size belongs to the hadamard transform"},
      {"hadamard+int8:size=32", "size=32: expected 64, 128 or 256"},
      {"int8:scale=search", "scale=search belongs to mxfp4 and nvfp4"},
      {"int8:rounding=up", "rounding=up: expected nearest or stochastic"},
      {"int8:nonfinite=ignore", "nonfinite=ignore: expected propagate, raise or zero"},
      {"int8:ef=2", "ef=2: expected 0 or 1"},
      {"int8:seed=-1", "seed=-1: expected a whole number"},
      {"int8:seed=18446744073709551616", "expected a whole number"},
      {"int8:seed=1x", "seed=1x: expected a whole number"},
      {"int8:min_bytes=-1", "min_bytes=-1: expected a whole number"},
      {"int8:seed=1:seed=2", "option 'seed' is given twice"},
  };
  for (const auto& entry : cases) {
    try {
      parse_spec(entry.given);
      CHECK(false, "'%s' was taken", entry.given);
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCodec);
      CHECK(std::string(error.what()).find(entry.says) != std::string::npos, "'%s' gave: %s", entry.given,
            error.what());
      CHECK(std::string(error.what()).find("'" + std::string(entry.given) + "'") != std::string::npos);
    }
  }
}

// Against the table of docs/wire-format.md.
void sizes_are_as_documented() {
  const struct {
    const char* name;
    std::size_t block;
    std::size_t scale_bytes;
    std::size_t code_bytes;
    std::size_t tile_bytes;
  } rows[] = {
      {"fp32", 1, 0, 4, 0},         {"bf16", 1, 0, 2, 0},         {"fp16", 1, 0, 2, 0},
      {"fp8_e4m3", 128, 2, 128, 0}, {"fp8_e5m2", 128, 2, 128, 0}, {"int8", 128, 2, 128, 0},
      {"int6", 64, 2, 48, 0},       {"int4", 64, 2, 32, 0},       {"int3", 32, 2, 12, 0},
      {"int2", 32, 2, 8, 0},        {"mxfp8", 32, 1, 32, 0},      {"mxfp4", 32, 1, 16, 0},
      {"nvfp4", 16, 1, 8, 4},
  };
  CHECK(std::size(rows) == formats().size());
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    const auto& row = rows[i];
    CHECK(std::string(row.name) == formats()[i].name);
    const auto plain = make_scalar(row.name);
    const auto turned = make_scalar("hadamard+" + std::string(row.name) + ":size=128");
    for (const std::size_t count : {0, 1, 2, 127, 128, 129, 4095, 4096, 4097, 8192 + 65}) {
      const auto bytes = [&](std::size_t n) {
        std::size_t total = 0;
        for (std::size_t done = 0; done < n; done += 4096) {
          const std::size_t blocks = (std::min<std::size_t>(4096, n - done) + row.block - 1) / row.block;
          total += row.tile_bytes + blocks * (row.scale_bytes + row.code_bytes);
        }
        return total;
      };
      CHECK(plain->max_encoded_bytes(count) == bytes(count), "%s %zu", row.name, count);
      CHECK(turned->max_encoded_bytes(count) == bytes((count + 127) / 128 * 128), "%s %zu", row.name, count);
    }
    const double bits = 8.0 * static_cast<double>(plain->max_encoded_bytes(4096)) / 4096;
    CHECK(formats()[i].bits_per_element == bits && formats()[i].fixed_length && plain->fixed_length());
  }
  // Beyond what 32 bits count.
  CHECK(make_scalar("bf16")->max_encoded_bytes(std::size_t{1} << 33) == std::size_t{1} << 34);
}

void bad_calls_are_refused() {
  const auto codec = make_scalar("int8");
  std::vector<float> x(100);
  std::vector<std::uint8_t> wire(codec->max_encoded_bytes(100));
  EncodeJob job;
  job.src = x.data();
  job.count = 100;
  job.dst = wire.data();
  job.capacity = wire.size() - 1;
  CHECK_THROWS(codec->encode(job), Code::kInvalid);
  job.capacity = wire.size();
  for (int dtype = 3; dtype < kDTypeCount; ++dtype) {
    job.dtype = static_cast<DType>(dtype);
    CHECK_THROWS(codec->encode(job), Code::kInvalid);
    CHECK_THROWS(codec->decode({wire.data(), wire.size()}, x.data(), job.dtype, 100), Code::kInvalid);
  }
  job.dtype = static_cast<DType>(99);
  CHECK_THROWS(codec->encode(job), Code::kInvalid);
  job.dtype = DType::kF32;
  CHECK(codec->encode(job).bytes == wire.size());
  CHECK_THROWS(codec->decode({wire.data(), wire.size() - 1}, x.data(), DType::kF32, 100), Code::kCodec);
  const Encoded arrivals[2] = {{}, {wire.data(), wire.size() - 1}};
  ReduceJob reduction;
  reduction.own = x.data();
  reduction.arrivals = arrivals;
  reduction.ranks = 2;
  reduction.count = 100;
  reduction.dst = wire.data();
  reduction.capacity = wire.size();
  reduction.out = x.data();
  CHECK_THROWS(codec->reduce_encode(reduction), Code::kCodec);
}

// One call that is large enough to write past the caches, against pieces that are not.
void large_outputs_are_the_same() {
  const std::size_t count = kStreamBytes / 4 + 4097;
  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    for (const char* text : {"int8", "bf16", "nvfp4"}) {
      const auto codec = BlockCodec::make(parse_spec(text), isa);
      const std::vector<float> x = make_data(Data::kNormal, count, 8);
      std::vector<std::uint8_t> wire(codec->max_encoded_bytes(count));
      EncodeJob job;
      job.src = x.data();
      job.count = count;
      job.dst = wire.data();
      job.capacity = wire.size();
      codec->encode(job);
      std::vector<float> whole(count + 16);
      float* aligned = whole.data() + (16 - reinterpret_cast<std::uintptr_t>(whole.data()) % 16) % 16 / 4;
      codec->decode({wire.data(), wire.size()}, aligned, DType::kF32, count);
      const std::size_t tile_bytes = codec->max_encoded_bytes(kTile);
      for (std::size_t done = 0; done < count; done += kTile) {
        const std::size_t length = std::min(kTile, count - done);
        float piece[kTile];
        codec->decode({wire.data() + done / kTile * tile_bytes, codec->max_encoded_bytes(length)}, piece,
                      DType::kF32, length);
        CHECK(std::memcmp(piece, aligned + done, length * 4) == 0, "%s at %zu", text, done);
      }
    }
  }
}

void streams_are_told_apart() {
  CHECK(stream_id("", kSumSource) == 0x811C9DC5u);
  CHECK(stream_id("a", kSumSource) == 0xE40C292Cu);  // FNV-1a's published value
  CHECK(stream_id("a", 0) == 0xE40C292Cu + 0x9E3779B9u);
  CHECK(stream_id("a", 3) != stream_id("a", 2) && stream_id("a", 3) != stream_id("b", 3));
}

}  // namespace

int main() {
  texts_round_trip();
  bad_texts_are_named();
  sizes_are_as_documented();
  bad_calls_are_refused();
  large_outputs_are_the_same();
  streams_are_told_apart();
  return check::report("codec_spec");
}
