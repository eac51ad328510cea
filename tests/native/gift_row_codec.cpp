// mode=rows as a codec: what it encodes against float64, element by element, and its verbs against one another.
#include <algorithm>
#include <random>

#include "format_bounds.h"
#include "gift_rows.h"

using namespace gift_test;
using namespace gcomm;

namespace {

struct Shape {
  std::size_t rows;
  std::size_t cols;
  std::size_t rank;
};
// Group lengths of every sort: one row of the last group, rows that are no multiple of a block, one column more
// than a tile, one group only.
const Shape kShapes[] = {{1, 8, 3}, {130, 40, 5}, {33, 257, 8}, {9, 4097, 4}, {64, 256, 20}, {100, 64, 17}};

// The decoded coordinates, as a reader of the bytes finds them: bands first, each rows x directions.
std::vector<double> coordinates(const RowBasis& basis, const std::uint8_t* wire, std::size_t rows, int side,
                                std::size_t& used) {
  std::vector<double> s(rows * basis.rank);
  used = 0;
  for (std::size_t first = 0; first < basis.rank;) {
    const std::size_t last = side >= 0 ? basis.rank : std::min<std::size_t>(first == 0 ? 16 : 1000, basis.rank);
    const char* format = side >= 0    ? codec::formats()[static_cast<std::size_t>(side)].name
                         : first == 0 ? "int6"
                                      : "int4";
    const auto block = BlockCodec::make(codec::parse_spec(format), Isa::kScalar);
    const std::size_t count = rows * (last - first);
    std::vector<float> band(count);
    block->decode({wire + used, block->max_encoded_bytes(count)}, band.data(), DType::kF32, count);
    used += block->max_encoded_bytes(count);
    for (std::size_t e = 0; e < count; ++e) {
      const std::size_t k = first + e % (last - first);
      // The power of two just above the root mean square of the direction's coordinates.
      const double scale = std::exp2(std::floor(std::log2(basis.values[k] / 10)) + 1);
      s[e / (last - first) * basis.rank + k] = static_cast<double>(band[e]) * scale;
    }
    first = last;
  }
  return s;
}

// |x - decoded| is what the format of the rest loses of the rest G - Q(S) V^T in its block, and fp32's rounding
// of that difference and sum; nothing of what S loses.
void check_bounds(const std::string& format, const Shape& shape, const std::string& side) {
  const RowBasis basis(shape.cols, shape.rank);
  const std::string text = "gift+" + format + ":mode=rows" + side;
  const auto codec = basis.codec(text, codec::best_isa());
  const std::vector<float> x = basis.matrix(shape.rows, 5);
  const Bytes wire = encode(*codec, x).wire;
  const std::vector<float> y = decode(*codec, wire, x.size());
  const format_bounds::Row& row = format_bounds::row(format);
  const auto rest_codec = plain(codec::parse_spec(text), Isa::kScalar);
  const std::size_t group = codec->granule() / shape.cols;
  CHECK(codec->granule() % shape.cols == 0 && codec->granule() % 64 == 0 && codec->granule() >= codec::kTile);
  std::size_t offset = 0;
  for (std::size_t begin = 0; begin < shape.rows; begin += group) {
    const std::size_t rows = std::min(group, shape.rows - begin);
    const std::size_t cells = rows * shape.cols;
    std::size_t used = 0;
    const std::vector<double> s =
        coordinates(basis, wire.data() + offset, rows, codec::parse_spec(text).gift.side, used);
    offset += used + rest_codec->max_encoded_bytes(cells);
    std::vector<double> rest(cells);
    std::vector<double> chain(cells);  // sum of magnitudes in the chains, for their rounding
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < shape.cols; ++j) {
        double& value = rest[i * shape.cols + j];
        value = static_cast<double>(x[(begin + i) * shape.cols + j]);
        chain[i * shape.cols + j] = std::fabs(value);
        for (std::size_t k = 0; k < shape.rank; ++k) {
          const double term =
              s[i * shape.rank + k] * static_cast<double>(basis.v[j * padded_rank(shape.rank) + k]);
          value -= term;
          chain[i * shape.cols + j] += std::fabs(term);
        }
      }
      // S itself is the product: what is left of it in the rest is less than half a step of its format, here at
      // most a fifth of the largest coordinate of its band in two or three rows (int4: 1/7/2 and the bf16
      // scale).
      for (std::size_t k = 0; k < shape.rank; ++k) {
        double left = 0;
        for (std::size_t j = 0; j < shape.cols; ++j) {
          left += rest[i * shape.cols + j] * static_cast<double>(basis.v[j * padded_rank(shape.rank) + k]);
        }
        double largest = 0;  // of the group, in units of the direction's scale
        for (std::size_t e = 0; e < rows * shape.rank; ++e) {
          largest = std::max(largest, std::fabs(s[e]) / basis.values[e % shape.rank]);
        }
        CHECK(std::fabs(left) <= 0.2 * largest * 2 * basis.values[k],
              "%s %zu x %zu: coordinate %zu of row %zu: %g left", text.c_str(), shape.rows, shape.cols, k,
              begin + i, left);
      }
    }
    for (std::size_t e = 0; e < cells; ++e) {
      const std::size_t block = e / row.block * row.block;
      const std::size_t tile = e / codec::kTile * codec::kTile;
      double in_block = 0;
      double in_tile = 0;
      double rounding = 0;
      for (std::size_t o = block; o < std::min(cells, block + row.block); ++o) {
        in_block = std::max(in_block, std::fabs(rest[o]));
        rounding = std::max(rounding, chain[o]);
      }
      for (std::size_t o = tile; o < std::min(cells, tile + codec::kTile) && row.block == 16; ++o) {
        in_tile = std::max(in_tile, std::fabs(rest[o]));
      }
      rounding *= static_cast<double>(shape.rank + 4) * 0x1p-23;
      const double bound =
          row.bound(std::fabs(rest[e]) + rounding, in_block + rounding, in_tile + rounding) * (1 + 0x1p-20) +
          rounding;
      const double error = std::fabs(static_cast<double>(x[begin * shape.cols + e]) -
                                     static_cast<double>(y[begin * shape.cols + e]));
      CHECK(error <= bound, "%s %zu x %zu: element %zu is off by %g, allowed %g", text.c_str(), shape.rows,
            shape.cols, begin * shape.cols + e, error, bound);
    }
  }
  CHECK(offset == wire.size());
}

// The verbs say the same: one after the other, range by range, on every instruction set and from every dtype.
void check_verbs(const std::string& text, const Shape& shape) {
  const RowBasis basis(shape.cols, shape.rank);
  const auto scalar = basis.codec(text);
  const auto best = basis.codec(text, codec::best_isa());
  const bool feedback = scalar->spec().error_feedback;
  const std::vector<float> x = basis.matrix(shape.rows, 9);
  const std::vector<float> start = feedback ? normals(x.size(), 4, 0.01f) : std::vector<float>(x.size(), 0.0f);
  std::vector<float> residual = start;
  float* const kept = feedback ? residual.data() : nullptr;
  const Encoding whole = encode(*scalar, x, kept, 0);
  const std::vector<float> y = decode(*scalar, whole.wire, x.size());
  CHECK(!whole.result.nonfinite);
  const std::string what = text + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols);

  std::vector<float> other = start;
  CHECK(encode(*best, x, feedback ? other.data() : nullptr).wire == whole.wire, "%s: bytes of the best ISA",
        what.c_str());
  CHECK(same_bits(other, residual) && same_bits(decode(*best, whole.wire, x.size()), y), "%s: best ISA",
        what.c_str());

  // Ranges cut at granules, each at its place, concatenate to the whole.
  Bytes pieces;
  other = start;
  for (std::size_t begin = 0; begin < x.size(); begin += scalar->granule()) {
    const std::size_t count = std::min(scalar->granule(), x.size() - begin);
    const std::vector<float> part(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                  x.begin() + static_cast<std::ptrdiff_t>(begin + count));
    const Bytes wire = encode(*scalar, part, feedback ? other.data() + begin : nullptr, begin).wire;
    const std::vector<float> read = decode(*scalar, wire, count);
    CHECK(std::equal(read.begin(), read.end(), y.begin() + static_cast<std::ptrdiff_t>(begin)), "%s: piece",
          what.c_str());
    pieces.insert(pieces.end(), wire.begin(), wire.end());
  }
  CHECK(pieces == whole.wire && same_bits(other, residual), "%s: pieces", what.c_str());

  // The residual is what is missing of input and old residual.
  for (std::size_t i = 0; i < x.size() && feedback; ++i) {
    const float input = x[i] + start[i];
    CHECK(residual[i] == input - y[i], "%s: residual %zu", what.c_str(), i);
  }

  const std::vector<float> before = normals(x.size(), 6, 1.0f);
  std::vector<float> sum = before;
  best->decode_accumulate({whole.wire.data(), whole.wire.size()}, sum.data(), sum.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(sum[i] == before[i] + y[i], "%s: sum %zu", what.c_str(), i);

  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Matrix halves(shape.rows, shape.cols, x, dtype);
    std::vector<float> same(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) same[i] = halves.at(0, i);
    Bytes wire(best->max_encoded_bytes(x.size()));
    EncodeJob job;
    job.src = halves.view().data;
    job.dtype = dtype;
    job.count = x.size();
    job.dst = wire.data();
    job.capacity = wire.size();
    job.position = {0, 3, 99};
    other = start;
    job.residual = feedback ? other.data() : nullptr;
    best->encode(job);
    std::vector<float> expected = start;
    CHECK(wire == encode(*scalar, same, feedback ? expected.data() : nullptr).wire, "%s: %s", what.c_str(),
          dtype_info(dtype).name);
    std::vector<std::uint16_t> out(x.size());
    best->decode({wire.data(), wire.size()}, out.data(), dtype, out.size());
    const std::vector<float> values = decode(*scalar, wire, x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      CHECK(out[i] == (dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i])), "%s: to %s",
            what.c_str(), dtype_info(dtype).name);
    }
  }
}

// The owner's pass is decode, add in rank order, divide, encode, decode.
void check_reduce(const std::string& text, const Shape& shape, int own, float divisor, DType dtype) {
  constexpr int kRanks = 3;
  const RowBasis basis(shape.cols, shape.rank);
  const auto codec = basis.codec(text, codec::best_isa());
  const std::size_t count = shape.rows * shape.cols;
  const bool feedback = codec->spec().error_feedback;
  const Matrix mine(shape.rows, shape.cols, basis.matrix(shape.rows, 31), dtype);
  std::vector<Bytes> wires(kRanks);
  std::vector<Encoded> arrivals(kRanks);
  std::vector<float> sum;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<float> part(count);
    if (rank == own) {
      for (std::size_t i = 0; i < count; ++i) part[i] = mine.at(0, i);
    } else {
      auto& wire = wires[static_cast<std::size_t>(rank)];
      std::vector<float> scratch(count, 0.0f);
      wire = encode(*codec, basis.matrix(shape.rows, 31 + static_cast<std::uint64_t>(rank)),
                    feedback ? scratch.data() : nullptr)
                 .wire;
      arrivals[static_cast<std::size_t>(rank)] = {wire.data(), wire.size()};
      part = decode(*codec, wire, count);
    }
    if (rank == 0) {
      sum = part;
    } else {
      for (std::size_t i = 0; i < count; ++i) sum[i] += part[i];
    }
  }
  for (float& value : sum) value /= divisor;
  const std::vector<float> start = normals(count, 8, 0.01f);
  std::vector<float> residual = start;
  const Bytes expected = encode(*codec, sum, feedback ? residual.data() : nullptr).wire;
  const std::vector<float> decoded = decode(*codec, expected, count);

  Bytes wire(expected.size());
  Bytes out(count * dtype_size(dtype));
  std::vector<float> kept = start;
  ReduceJob job;
  job.own = mine.view().data;
  job.dtype = dtype;
  job.arrivals = arrivals.data();
  job.ranks = kRanks;
  job.own_rank = own;
  job.count = count;
  job.divisor = divisor;
  job.residual = feedback ? kept.data() : nullptr;
  job.position = {0, 3, 99};
  job.dst = wire.data();
  job.capacity = wire.size();
  job.out = out.data();
  const EncodeResult result = codec->reduce_encode(job);
  CHECK(result.bytes == wire.size() && wire == expected && !result.nonfinite, "%s: rank %d sums", text.c_str(),
        own);
  CHECK(!feedback || same_bits(kept, residual), "%s: residual of the sum", text.c_str());
  const Matrix stored(shape.rows, shape.cols, decoded, dtype);
  CHECK(std::memcmp(out.data(), stored.view().data, out.size()) == 0, "%s: what the owner keeps", text.c_str());
  // Only the sum, not encoded.
  job.dst = nullptr;
  job.residual = nullptr;
  CHECK(codec->reduce_encode(job).bytes == 0);
  const Matrix plain_sum(shape.rows, shape.cols, sum, dtype);
  CHECK(std::memcmp(out.data(), plain_sum.view().data, out.size()) == 0, "%s: the sum alone", text.c_str());
}

// Directions that the reference hardly had are scaled as those at the floor.
void check_floor() {
  const RowBasis low(96, 12);
  RowBasis raised = low;
  for (double& value : raised.values) value = std::max(value, 20.0);
  const std::vector<float> x = low.matrix(64, 5);
  const Encoding floored = encode(*low.codec("gift+int8:mode=rows", Isa::kScalar, 20.0), x);
  CHECK(floored.wire == encode(*raised.codec("gift+int8:mode=rows"), x).wire);
  CHECK(floored.wire != encode(*low.codec("gift+int8:mode=rows"), x).wire);
}

}  // namespace

int main() {
  check_floor();
  for (const Shape& shape : kShapes) {
    for (const char* format : {"int8", "int4", "nvfp4", "fp8_e4m3", "int2"}) {
      check_bounds(format, shape, "");
    }
    check_bounds("int3", shape, ":side=int8");
    for (const char* text :
         {"gift+int8:mode=rows", "gift+nvfp4:mode=rows:ef=1", "gift+hadamard+int4:mode=rows",
          "gift+int3:mode=rows:rounding=stochastic:side=bf16", "gift+fp8_e4m3:mode=rows:nonfinite=zero"}) {
      check_verbs(text, shape);
    }
  }
  for (int own = 0; own < 3; ++own) {
    const Shape& shape = kShapes[own + 1];
    check_reduce("gift+int8:mode=rows", shape, own, 1.0f, DType::kF32);
    check_reduce("gift+int4:mode=rows:ef=1", shape, own, 3.0f, DType::kF32);
    check_reduce("gift+hadamard+fp8_e4m3:mode=rows", shape, own, 3.0f, DType::kBF16);
    check_reduce("gift+int6:mode=rows:rounding=stochastic:ef=1", shape, own, 1.0f, DType::kF16);
  }
  return check::report("gift_row_codec");
}
