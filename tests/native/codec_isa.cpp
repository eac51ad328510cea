// Every driver gives the bits of the scalar one: all formats, options, dtypes, sizes, sorts of input, and
// alignments.
#include <cmath>

#include "codec_harness.h"

namespace {

using namespace codec_test;

constexpr std::size_t kSizes[] = {0, 1, 2, 7, 31, 32, 33, 127, 128, 129, 4095, 4096, 4097, 3 * 4096 + 5};
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Outcome {
  std::vector<std::uint8_t> wire;
  std::vector<float> residual;
  EncodeResult result;
};

Outcome encode(const BlockCodec& codec, const Elements& x, DType dtype, std::size_t count, bool with_residual,
               std::size_t offset) {
  Outcome out;
  std::vector<std::uint8_t> storage(codec.max_encoded_bytes(count) + offset + 32, 0x5A);
  EncodeJob job;
  job.src = x.data();
  job.dtype = dtype;
  job.count = count;
  if (with_residual) {
    out.residual.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      out.residual[i] = 0.01f * static_cast<float>(i % 7) - 0.03f;
    }
    job.residual = out.residual.data();
  }
  job.position = {4096, 3, stream_id("weight", 2)};
  job.dst = storage.data() + offset;
  job.capacity = codec.max_encoded_bytes(count);
  out.result = codec.encode(job);
  CHECK(out.result.bytes == codec.max_encoded_bytes(count));
  for (std::size_t i = 0; i < storage.size(); ++i) {
    if (i < offset || i >= offset + out.result.bytes) {
      CHECK(storage[i] == 0x5A, "%s wrote outside at %zu of %zu", codec.spec().text().c_str(), i, count);
    }
  }
  out.wire.assign(job.dst, job.dst + out.result.bytes);
  return out;
}

void compare_floats(const char* what, const std::string& where, const std::vector<float>& a,
                    const std::vector<float>& b) {
  const std::size_t at = first_difference(a.data(), b.data(), a.size() * 4) / 4;
  CHECK(a.size() == b.size() && at == a.size(), "%s: %s differs at %zu", where.c_str(), what, at);
}

// Encoding, decoding to every dtype, accumulation.
void compare_coding(const std::string& text, const NamedDriver& driver, const std::vector<float>& values,
                    bool with_residual, std::size_t offset, std::uint64_t seed) {
  const auto scalar = make_scalar(text);
  const auto vector = make(text, driver);
  const std::size_t count = values.size();
  for (const DType dtype : kDTypes) {
    const std::string where = text + " on " + driver.name + ", " + std::to_string(count) + " " +
                              dtype_info(dtype).name + ", data " + std::to_string(seed);
    const Elements x(dtype, values, offset * dtype_size(dtype) / 2 + offset % 2);
    const Outcome want = encode(*scalar, x, dtype, count, with_residual, 0);
    const Outcome got = encode(*vector, x, dtype, count, with_residual, offset);
    CHECK(want.result.nonfinite == got.result.nonfinite, "%s", where.c_str());
    const std::size_t at = first_difference(want.wire.data(), got.wire.data(), want.wire.size());
    CHECK(at == want.wire.size(), "%s: byte %zu of %zu", where.c_str(), at, want.wire.size());
    compare_floats("residual", where, want.residual, got.residual);

    // Decoded from a misaligned copy, so that reads past the end would be seen by a sanitiser.
    std::vector<std::uint8_t> wire(offset + want.wire.size());
    std::copy(want.wire.begin(), want.wire.end(), wire.begin() + static_cast<std::ptrdiff_t>(offset));
    const Encoded encoded{wire.data() + offset, want.wire.size()};
    Elements a(dtype, count);
    Elements b(dtype, count, offset);
    scalar->decode(encoded, a.data(), dtype, count);
    vector->decode(encoded, b.data(), dtype, count);
    CHECK(a.same(b), "%s: decode differs at byte %zu", where.c_str(),
          first_difference(a.data(), b.data(), a.bytes()));
    CHECK(a.margins_intact() && b.margins_intact(), "%s: decode wrote outside", where.c_str());

    // Past the caches: only where the output is aligned, so once with each.
    for (const std::size_t shift : {0, 16, 4}) {
      std::vector<std::uint8_t> room(a.bytes() + 256, 0xA5);
      std::uint8_t* out = room.data() + 128 - reinterpret_cast<std::uintptr_t>(room.data()) % 64 + shift;
      vector->decode_streaming(encoded, out, dtype, count);
      CHECK(std::memcmp(out, a.data(), a.bytes()) == 0, "%s: decode_streaming", where.c_str());
      CHECK(out[-1] == 0xA5 && out[a.bytes()] == 0xA5, "%s: decode_streaming wrote outside", where.c_str());
    }

    Elements sum_a(DType::kF32, values);
    Elements sum_b(DType::kF32, values, offset);
    scalar->decode_accumulate(encoded, reinterpret_cast<float*>(sum_a.data()), count);
    vector->decode_accumulate(encoded, reinterpret_cast<float*>(sum_b.data()), count);
    CHECK(sum_a.same(sum_b), "%s: decode_accumulate", where.c_str());
    CHECK(sum_a.margins_intact() && sum_b.margins_intact(), "%s: decode_accumulate wrote outside",
          where.c_str());
  }
}

struct Reduced {
  std::vector<std::uint8_t> wire;
  Elements out;
  std::vector<float> residual;
  EncodeResult result;
};

Reduced reduce(const BlockCodec& codec, const std::vector<std::vector<std::uint8_t>>& wires,
               const Elements& own, DType dtype, std::size_t count, int own_rank, float divisor, bool encodes,
               bool with_residual) {
  Reduced out{{}, own, {}, {}};
  out.wire.resize(codec.max_encoded_bytes(count), 0x5A);
  std::vector<Encoded> arrivals;
  for (const auto& wire : wires) {
    arrivals.push_back({wire.data(), wire.size()});
  }
  arrivals[static_cast<std::size_t>(own_rank)] = {};
  if (with_residual) {
    out.residual.assign(count, 0.01f);
  }
  ReduceJob job;
  job.own = out.out.data();  // in place
  job.dtype = dtype;
  job.arrivals = arrivals.data();
  job.ranks = static_cast<int>(arrivals.size());
  job.own_rank = own_rank;
  job.count = count;
  job.divisor = divisor;
  job.residual = with_residual ? out.residual.data() : nullptr;
  job.position = {0, 1, stream_id("weight", kSumSource)};
  job.dst = encodes ? out.wire.data() : nullptr;
  job.capacity = out.wire.size();
  job.out = out.out.data();
  out.result = codec.reduce_encode(job);
  return out;
}

// The same by public steps: decode, sum in rank order, divide, overflow, encode, decode.
Reduced replay(const BlockCodec& codec, const std::vector<std::vector<std::uint8_t>>& wires,
               const Elements& own, DType dtype, std::size_t count, int own_rank, float divisor, bool encodes,
               bool with_residual) {
  Reduced out{{}, own, {}, {}};
  std::vector<float> sum(count);
  std::vector<float> term(count);
  for (std::size_t rank = 0; rank < wires.size(); ++rank) {
    if (static_cast<int>(rank) == own_rank) {
      term = own.floats();
      for (float& v : term) {
        out.result.nonfinite |= !is_finite(v);
        v = codec.spec().nonfinite == NonFinite::kZero && !is_finite(v) ? 0.0f : v;
      }
    } else {
      codec.decode({wires[rank].data(), wires[rank].size()}, term.data(), DType::kF32, count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] = rank == 0 ? term[i] : sum[i] + term[i];
    }
  }
  const float limit = dtype == DType::kF16 ? 65520.0f : dtype == DType::kBF16 ? 0x1.FFp127f : INFINITY;
  for (float& v : sum) {
    v = v / divisor;
    v = std::fabs(v) >= limit ? std::copysign(INFINITY, v) : v;
  }
  if (!encodes) {
    out.out = Elements(dtype, sum);
    return out;
  }
  CodecSpec spec = codec.spec();
  spec.nonfinite = NonFinite::kPropagate;  // `zero` is about a rank's own input
  const auto plain = BlockCodec::make(spec, Isa::kScalar);
  if (with_residual) {
    out.residual.assign(count, 0.01f);
  }
  out.wire.resize(codec.max_encoded_bytes(count));
  EncodeJob job;
  job.src = sum.data();
  job.count = count;
  job.residual = with_residual ? out.residual.data() : nullptr;
  job.position = {0, 1, stream_id("weight", kSumSource)};
  job.dst = out.wire.data();
  job.capacity = out.wire.size();
  plain->encode(job);
  plain->decode({out.wire.data(), out.wire.size()}, out.out.data(), dtype, count);
  return out;
}

bool canonical_same(const Elements& a, const Elements& b) {
  const std::vector<float> x = a.floats();
  const std::vector<float> y = b.floats();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (float_bits(x[i]) != float_bits(y[i]) && !(std::isnan(x[i]) && std::isnan(y[i]))) {
      return false;
    }
  }
  return x.size() == y.size();
}

void compare_reduction(const std::string& text, const BlockCodec& codec, const std::string& name,
                       std::uint32_t seed) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{130}, std::size_t{4096 + 77}}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const DType dtype = kDTypes[(static_cast<std::size_t>(ranks) + seed) % 3];
      std::vector<std::vector<std::uint8_t>> wires;
      for (int rank = 0; rank < ranks; ++rank) {
        const Data kind = kAllData[(seed + static_cast<std::uint32_t>(rank)) % 8];
        const Elements x(DType::kF32, make_data(kind, count, seed + static_cast<std::uint32_t>(rank)));
        wires.push_back(encode(codec, x, DType::kF32, count, false, 0).wire);
      }
      for (int own_rank = 0; own_rank < ranks; ++own_rank) {
        const Elements own(dtype, make_data(kAllData[seed % 8], count, seed + 99));
        const float divisor = seed % 2 == 0 ? 1.0f : static_cast<float>(ranks);
        for (const bool encodes : {true, false}) {
          for (const bool with_residual : {false, true}) {
            const std::string where = text + " on " + name + ", " + std::to_string(count) + " " +
                                      dtype_info(dtype).name + ", rank " + std::to_string(own_rank) + " of " +
                                      std::to_string(ranks) + (encodes ? "" : ", sum itself") +
                                      (with_residual ? ", residual" : "") + ", data " + std::to_string(seed);
            const Reduced got =
                reduce(codec, wires, own, dtype, count, own_rank, divisor, encodes, encodes && with_residual);
            const Reduced want =
                replay(codec, wires, own, dtype, count, own_rank, divisor, encodes, encodes && with_residual);
            CHECK(got.result.nonfinite == want.result.nonfinite, "%s: non-finite", where.c_str());
            CHECK(encodes ? got.out.same(want.out) : canonical_same(got.out, want.out), "%s: out",
                  where.c_str());
            CHECK(got.out.margins_intact(), "%s: wrote outside", where.c_str());
            if (encodes) {
              const std::size_t at = first_difference(got.wire.data(), want.wire.data(), want.wire.size());
              CHECK(at == want.wire.size(), "%s: byte %zu of %zu", where.c_str(), at, want.wire.size());
              compare_floats("residual", where, want.residual, got.residual);
            }
          }
        }
      }
    }
  }
}

void compare_raw(const NamedDriver& driver, std::uint32_t seed) {
  for (const DType dtype : kDTypes) {
    for (const std::size_t count : kSizes) {
      std::vector<Elements> inputs;
      std::vector<const void*> pointers;
      for (std::uint32_t rank = 0; rank < 1 + seed % 4; ++rank) {
        inputs.emplace_back(dtype, make_data(kAllData[(seed + rank) % 8], count, seed * 10 + rank), rank);
      }
      for (const Elements& input : inputs) {
        pointers.push_back(input.data());
      }
      const int ranks = static_cast<int>(pointers.size());
      for (const bool zero : {false, true}) {
        Elements a(dtype, count);
        Elements b(dtype, count, 3);
        const bool special =
            raw_reduce(pointers.data(), ranks, dtype, count, 3.0f, zero, a.data(), Isa::kScalar);
        bool seen = false;
        std::vector<float> sum(count);
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<float> x = inputs[static_cast<std::size_t>(rank)].floats();
          for (std::size_t i = 0; i < count; ++i) {
            seen |= !is_finite(x[i]);
            const float v = zero && !is_finite(x[i]) ? 0.0f : x[i];
            sum[i] = rank == 0 ? v : sum[i] + v;
          }
        }
        for (float& v : sum) {
          v = v / 3.0f;
        }
        CHECK(seen == special);
        CHECK(a.same(Elements(dtype, sum)) || canonical_same(a, Elements(dtype, sum)), "raw sum, %s, %zu",
              dtype_info(dtype).name, count);
        for (const float v : a.floats()) {
          CHECK(!std::isnan(v) || float_bits(v) == 0x7FC00000u);
        }
        if (isa_available(driver.isa)) {
          CHECK(raw_reduce(pointers.data(), ranks, dtype, count, 3.0f, zero, b.data(), driver.isa) == special);
          CHECK(a.same(b) && b.margins_intact(), "raw_reduce on %s, %s, %zu", driver.name.c_str(),
                dtype_info(dtype).name, count);
        }
      }
    }
  }
}

// Option sets; parse_spec() tells which a format takes.
std::vector<std::string> texts(const std::string& format) {
  std::vector<std::string> out = {format,
                                  "hadamard+" + format + ":seed=5",
                                  "hadamard+" + format + ":size=128",
                                  "hadamard+" + format + ":size=256:nonfinite=zero",
                                  format + ":nonfinite=zero",
                                  format + ":rounding=stochastic:seed=9"};
  if (format_can_search(parse_spec(format).format)) {
    out.push_back(format + ":scale=search");
    out.push_back("hadamard+" + format + ":rounding=stochastic:scale=search");
  }
  return out;
}

}  // namespace

int main() {
  const std::vector<NamedDriver> drivers = vector_drivers();
  const NamedDriver scalar{"scalar", Isa::kScalar, &scalar_driver()};
  for (const FormatInfo& format : formats()) {
    for (const std::string& text : texts(format.name)) {
      std::uint32_t seed = 0;
      for (const NamedDriver& driver : drivers) {
        for (const std::size_t count : kSizes) {
          for (std::size_t kind = 0; kind < std::size(kAllData); ++kind) {
            // Every sort of input for the plain formats; one after the other for the rest.
            if (text == format.name || kind == seed % std::size(kAllData)) {
              compare_coding(text, driver, make_data(kAllData[kind], count, seed + 1), seed % 3 == 1, seed % 5,
                             kind);
            }
          }
          ++seed;
        }
        compare_reduction(text, *make(text, driver), driver.name, seed);
      }
      for (std::uint32_t data = 0; data < 8; ++data) {
        compare_reduction(text, *make(text, scalar), "scalar", data);
      }
    }
  }
  for (std::uint32_t seed = 0; seed < 16; ++seed) {
    for (const NamedDriver& driver : drivers) {
      compare_raw(driver, seed);
    }
    compare_raw(scalar, seed);
  }
  for (const NamedDriver& driver : drivers) {
    std::printf("compared with scalar: %s\n", driver.name.c_str());
  }
  return check::report("codec_isa");
}
