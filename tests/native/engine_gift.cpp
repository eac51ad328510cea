// GIFT through the engine: every mode and geometry over ranks, transports, shapes and dtypes, against exact
// sums.
#include "engine_gift.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

struct Way {
  const char* text;
  const char* path;  // what report() says once a basis is there
  double format;     // half a step of the format against its block's largest magnitude, over 1: docs/codecs.md
  double block;
};

// int8: 1/127/2 and the bf16 scale's rounding up; int4: 1/7/2.
constexpr double kInt8 = 0.5 / 127 * (1 + 0x1p-7), kInt4 = 0.5 / 7 * (1 + 0x1p-7);

const Way kWays[] = {
    {"gift+int8:mode=scale:rank=4", "scale", kInt8, 128},
    {"gift+int4:mode=split:rank=5", "split", kInt4, 64},
    {"gift+int8:mode=split:rank=9:side=bf16", "split", kInt8, 128},
    {"gift+int4:mode=rows:rank=6", "rows", kInt4, 64},
    {"gift+int8:mode=rows:rank=18", "rows", kInt8, 128},
    {"gift+int8:geometry=factored", "by row and column", kInt8, 128},
    {"gift+int4:geometry=elementwise:refresh=1", "by row and column", kInt4, 64},
    {"gift+int4", nullptr, kInt4, 64},
};

// What may be lost of the matrix, in the Frobenius norm. An element loses at most `format` times the largest of
// its block, so a matrix at most format sqrt(block) times its norm; it is quantised once in each rank's part
// and once in the sum. None of the transforms makes the coded matrix larger than the matrix:
// * rows: ||G - Q(S) V^T||^2 = ||G - S V^T||^2 + ||S - Q(S)||^2, and a quantiser that has a zero moves a number
// by
//   no more than its size; split: the same for P, then S. A side's sum in int8 (or bf16) is quantised once
//   more, blocks of 128, and is at most twice the sum of the norms.
// * weights and scale: multipliers of at most 1; but what is lost grows by their inverses on the way back.
double allowance(const Way& way, const MatrixShape& shape, double norms) {
  const double once = way.format * std::sqrt(way.block);
  double growth = 1.0;
  double sides = 0.0;
  const std::string text = way.text;
  if (text.find("scale") != std::string::npos) {
    // d >= (rest / s)^(3/8), rest >= ||G|| / 10 / sqrt(min(m, n)), s <= ||G||; on two sides.
    growth = std::pow(10 * std::sqrt(static_cast<double>(std::min(shape.rows, shape.cols))), 0.75);
  }
  if (text.find("split") != std::string::npos) sides = 2 * 2 * kInt8 * std::sqrt(128.0);
  if (text.find("geometry") != std::string::npos)
    growth = 256.0 * 256.0;  // checked element by element elsewhere
  if (way.path == nullptr) {
    growth = std::pow(10 * std::sqrt(static_cast<double>(std::min(shape.rows, shape.cols))), 0.75);
    sides = 2 * 2 * kInt8 * std::sqrt(128.0);
  }
  return norms * (growth * once * (2 + once) + sides + 1e-4);
}

double dtype_step(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}

void check_error(const Bytes& result, const Exact& sum, const MatrixShape& shape, DType dtype, double allowed,
                 const std::string& what) {
  const std::vector<float> values = to_floats(result, dtype);
  std::vector<double> error(values.size());
  std::size_t nonfinite = 0;
  for (std::size_t e = 0; e < values.size(); ++e) {
    nonfinite += std::isfinite(values[e]) ? 0 : 1;
    error[e] = static_cast<double>(values[e]) - sum.sum[e];
  }
  CHECK(nonfinite == 0, "%s: %zu of %llu are not finite", what.c_str(), nonfinite,
        static_cast<unsigned long long>(shape.count()));
  const double lost = frobenius(error);
  allowed += dtype_step(dtype) * (frobenius(sum.sum) + allowed) +
             0x1p-24 * std::sqrt(static_cast<double>(shape.count()));
  CHECK(lost <= allowed, "%s: lost %g, allowed %g, of %g", what.c_str(), lost, allowed, frobenius(sum.sum));
}

bool too_small(const MatrixShape& shape) { return std::min(shape.rows, shape.cols) < 8; }

void check_way(World& world, const std::string& name, const Way& way, const MatrixShape& shape, Content content,
               DType dtype, bool average) {
  const int ranks = world.size();
  const std::string text = std::string(way.text) + ":min_bytes=0";
  const std::vector<comm::Codec> codecs = make_codecs(ranks, text), others = make_codecs(ranks, text);
  for (int call = 0; call < 3; ++call) {
    const std::vector<Bytes> inputs = gradients(ranks, shape, content, call, dtype);
    const Bytes result = reduce_matrix(world, inputs, shape, dtype, average, codecs, "w");
    const std::string what = name + ", " + text + ", " + shape.text() + ", content " +
                             std::to_string(static_cast<int>(content)) + ", " + dtype_info(dtype).name +
                             (average ? ", avg" : ", sum") + ", call " + std::to_string(call);
    CHECK(reduce_matrix(world, inputs, shape, dtype, average, others, "w", true) == result, "%s: in place",
          what.c_str());
    const Exact sum = exact(inputs, dtype, average);
    check_error(result, sum, shape, dtype, allowance(way, shape, sum.norms), what);
    if (content != Content::kGraded || too_small(shape) || way.path == nullptr) continue;
    CHECK(codecs[0]->report().find(std::string("\"path\":\"") + way.path) != std::string::npos, "%s: %s",
          what.c_str(), codecs[0]->report().c_str());
  }
  for (const comm::Codec& codec : codecs) CHECK(codec->report() == codecs[0]->report());
  if (content == Content::kZero) {
    CHECK(codecs[0]->report().find("\"path\":\"direct\"") != std::string::npos,
          "nothing was learned from zeros");
  }
}

void shapes() {
  const MatrixShape awkward[] = {{1, 300}, {300, 1}, {2, 2}, {8, 8}, {31, 23}, {9, 700}, {700, 9}};
  for (int ranks = 1; ranks <= 4; ++ranks) {
    World world({.size = ranks, .isa = codec::best_isa()});
    for (const Way& way : kWays) {
      int n = ranks;
      for (const MatrixShape& shape : awkward) {
        for (const Content content :
             {Content::kGraded, Content::kLowRank, Content::kZero, Content::kConstant}) {
          const auto dtype = static_cast<DType>(n++ % 3);
          check_way(world, std::to_string(ranks) + " ranks", way, shape, content, dtype, n % 2 == 0);
        }
      }
    }
  }
}

void larger() {
  for (const char* transport : {"local", "tcp"}) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      World world({.size = ranks, .transport = transport, .isa = codec::best_isa()});
      int n = ranks;
      for (const Way& way : kWays) {
        for (const MatrixShape& shape : {MatrixShape{256, 384}, MatrixShape{301, 517}}) {
          if ((ranks + n) % 2 == 0 && ranks != 3) {
            ++n;
            continue;
          }
          const auto dtype = static_cast<DType>(n++ % 3);
          check_way(world, std::string(transport) + ", " + std::to_string(ranks) + " ranks", way, shape,
                    Content::kGraded, dtype, n % 2 == 0);
        }
      }
    }
  }
}

// Sums near the end of fp32, all of them within it. What scale mode takes a matrix's products for must be, too.
void huge() {
  World world({.size = 3, .isa = codec::best_isa()});
  for (const Way& way : kWays) {
    if (way.path == nullptr || way.path == std::string("scale")) continue;
    check_way(world, "huge", way, {64, 80}, Content::kHuge, DType::kF32, true);
    check_way(world, "huge", way, {64, 80}, Content::kHuge, DType::kBF16, false);
  }
}

// Where the spectrum falls, GIFT loses less than the format alone does; that is what it is for.
void gains() {
  World world({.size = 2, .isa = codec::best_isa()});
  const MatrixShape shape{256, 384};
  const auto loss = [&](const std::string& text) {
    const std::vector<comm::Codec> codecs = make_codecs(2, text);
    double lost = 0;
    for (int call = 0; call < 3; ++call) {
      const std::vector<Bytes> inputs = gradients(2, shape, Content::kGraded, call, DType::kF32);
      const std::vector<float> result =
          to_floats(reduce_matrix(world, inputs, shape, DType::kF32, false, codecs, "w"), DType::kF32);
      const Exact sum = exact(inputs, DType::kF32, false);
      std::vector<double> error(result.size());
      for (std::size_t e = 0; e < error.size(); ++e) error[e] = static_cast<double>(result[e]) - sum.sum[e];
      lost = frobenius(error) / frobenius(sum.sum);
    }
    return lost;
  };
  const double direct = loss("int4");
  CHECK(direct > 0.1 && direct < 0.2, "%g", direct);
  // Outside of sixteen directions lies noise, some 3 % of the matrix; scale keeps a part of the distance.
  for (const char* mode : {"split", "rows"}) {
    const double lost = loss(std::string("gift+int4:rank=16:mode=") + mode);
    CHECK(lost < direct / 5, "%s: %g, direct %g", mode, lost, direct);
  }
  const double scaled = loss("gift+int4:rank=16:mode=scale");
  CHECK(scaled < 0.8 * direct, "%g, direct %g", scaled, direct);
  CHECK(loss("gift+int4") < direct / 3);
}

}  // namespace

int main() {
  shapes();
  larger();
  huge();
  gains();
  return check::report("engine_gift");
}
