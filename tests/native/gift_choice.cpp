// Which way a matrix travels: the predictions at points worked out by hand, and what options allow.
#include "check.h"
#include "gift/choice.h"
#include "gift/row_codec.h"
#include "gift_checks.h"

using namespace gcomm;
using namespace gcomm::gift;

namespace {

using Way = Choice::Way;

std::shared_ptr<const codec::BlockCodec> block_of(const char* format) {
  return codec::BlockCodec::make(codec::parse_spec(format), codec::Isa::kScalar);
}

struct Field {
  std::vector<double> leading;
  double squared_norm = 0;
  std::uint64_t rows = 64;
  std::uint64_t cols = 64;

  Choice choose(const std::string& options) const {
    const codec::GiftSpec spec = codec::parse_spec("gift+int4" + options).gift;
    const auto block = block_of("int4");
    const auto side =
        block_of(spec.side < 0 ? "int8" : codec::formats()[static_cast<std::size_t>(spec.side)].name);
    return gift::choose({rows, cols, leading, squared_norm}, spec, *block, *side, 0.1, 0.01,
                        codec::Isa::kScalar);
  }
};

// 85 of 100 in four directions.
const Field kHand{{8, 4, 2, 1}, 100};

bool near(double a, double b) { return std::fabs(a - b) <= 1e-9 * std::fabs(b); }

void by_hand() {
  // int4 takes 4.25 bits, int8 8.125, int6 6.25.
  const Choice direct = Field{{}, 0}.choose("");
  CHECK(direct.way == Way::kDirect && direct.predicted == 0.1 && near(direct.bits, 4.25) && direct.rank == 0);

  // The spectrum says that 15 of 100 are outside; a later gradient will have more.
  const double left = 1.3 * std::pow(0.15, 0.75) + 0.02;
  const Choice split = kHand.choose(":mode=split:rank=4");
  CHECK(split.way == Way::kSplit && split.rank == 4);
  CHECK(near(split.predicted, std::sqrt(0.01 * left + 1e-4 * (1 - left) / 2)), "%.12g", split.predicted);
  CHECK(near(split.bits, 4.25 + 4 * 128.0 / 4096 * 8.125), "%.12g", split.bits);
  CHECK(near(kHand.choose(":mode=split:rank=4:side=bf16").bits, 4.25 + 4 * 128.0 / 4096 * 16));

  const Choice rows = kHand.choose(":mode=rows:rank=4");
  CHECK(rows.way == Way::kRows && rows.rank == 4, "%u", rows.rank);
  CHECK(near(rows.predicted, 0.1 * std::sqrt(1.4 * std::pow(0.15, 0.625) + 0.02)), "%.12g", rows.predicted);
  CHECK(near(rows.bits, 4.25 + 4 * 6.25 / 64), "%.12g", rows.bits);

  // alpha = 1/2: d^2 = rest / s, rest^2 = 15/60 + 1/64 = 0.265625.
  const Choice scale = kHand.choose(":mode=scale:rank=4:alpha=0.5");
  const double rest = std::sqrt(0.265625);
  const double grown = 1 + (15 / rest - 4) / 64;
  CHECK(scale.way == Way::kScale && near(scale.predicted, 0.19 * std::sqrt((16 + 4 * 0.265625) / 100) * grown),
        "%.12g", scale.predicted);
  CHECK(near(scale.bits, 4.25));
  const Spectrum spectrum{64, 64, kHand.leading, kHand.squared_norm};
  for (std::size_t i = 0; i < 4; ++i) {
    for (int eighths = 1; eighths <= 8; ++eighths) {
      const double d = damping(spectrum, 4, i, eighths);
      const double expected = std::min(1.0, std::pow(rest / kHand.leading[i], eighths / 8.0));
      CHECK(near(d, expected), "%g, not %g", d, expected);
    }
  }
  CHECK(damping(spectrum, 3, 2, 8) < damping(spectrum, 3, 2, 1));
  // Of one direction alone a hundredth drifts: rest = 0.1 s / sqrt(100). Never above one, never below 2^-10.
  const std::vector<double> steep{1e9, 1e-9};
  CHECK(near(damping({200, 100, steep, 1e18}, 1, 0, 8), 0.01));
  CHECK(damping({200, 100, steep, 1e18}, 2, 1, 8) == 1.0);
  CHECK(damping({200, 100000000, steep, 1e18}, 1, 0, 8) > 0x1p-10);
  CHECK(damping({100000000, 100000000, steep, 1e18}, 1, 0, 8) == 0x1p-10);
}

void options_obeyed() {
  // log2(error) + bits: direct 0.93, scale (alpha = 3/8) 0.91, split 1.16, rows 0.74.
  CHECK(kHand.choose("").way == Way::kRows);
  const Field flat{std::vector<double>(32, 1.0), 64};  // of 64 like it
  CHECK(flat.choose("").way == Way::kDirect && flat.choose("").why == "the spectrum promises no gain");
  const char* modes[] = {"scale", "split", "rows"};
  const Way ways[] = {Way::kScale, Way::kSplit, Way::kRows};
  for (int i = 0; i < 3; ++i) {
    for (const int rank : {1, 5, 16, 31, 200}) {
      const Choice choice = flat.choose(std::string(":mode=") + modes[i] + ":rank=" + std::to_string(rank));
      CHECK(choice.way == ways[i] && choice.rank == static_cast<std::uint32_t>(std::min(rank, 32)),
            "%s %d: %d, %u", modes[i], rank, static_cast<int>(choice.way), choice.rank);
      CHECK(choice.why == "asked for");
    }
    // A mode alone is obeyed where it pays.
    const Choice paid = Field{kHand.leading, 85.5, 256, 256}.choose(std::string(":mode=") + modes[i]);
    CHECK(paid.way == ways[i] && paid.rank == 4);
    CHECK(flat.choose(std::string(":mode=") + modes[i]).way == Way::kDirect);
  }
  // Products of such values could overflow.
  const Field huge{{0x1p101}, 0x1p202};
  CHECK(huge.choose(":mode=scale:rank=1").way == Way::kDirect &&
        huge.choose(":mode=rows:rank=1").way == Way::kRows);
  // A rank alone is obeyed by any mode, or by none.
  const Field steep{gift_test::geometric(60, 0.5), 4.0 / 3};
  for (const int rank : {1, 3, 7, 20}) {
    const Choice choice = steep.choose(":rank=" + std::to_string(rank));
    CHECK(choice.way != Way::kDirect && choice.rank == static_cast<std::uint32_t>(rank), "%d", rank);
  }
  // Ranks on offer are 4 to 64, and no more than were found.
  for (const std::size_t found : {std::size_t{3}, std::size_t{4}, std::size_t{9}, std::size_t{40}}) {
    const Choice choice =
        Field{std::vector<double>(found, 1.0), static_cast<double>(found), 4096, 4096}.choose("");
    CHECK(found < 4 ? choice.way == Way::kDirect : choice.rank >= 4 && choice.rank <= found, "%zu: %u", found,
          choice.rank);
  }
  CHECK((Field{{1.0}, 1.0}.choose("").way == Way::kDirect));
  CHECK((Field{{}, 0}.choose(":mode=split:rank=4").way == Way::kDirect), "nothing to split off");
}

// A group of rows must fit a message.
void too_wide() {
  for (const std::uint64_t cols : {std::uint64_t{50000}, std::uint64_t{50001}, std::uint64_t{1} << 20}) {
    Field wide = kHand;
    wide.cols = cols;
    CHECK(wide.choose("").way != Way::kRows, "%llu", static_cast<unsigned long long>(cols));
    CHECK(wide.choose(":mode=rows:rank=4").way == Way::kDirect, "%llu", static_cast<unsigned long long>(cols));
  }
  for (const std::size_t cols :
       {std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{100}, std::size_t{4097}}) {
    const std::size_t rows = rows_together(cols);
    CHECK(rows * cols % 64 == 0 && rows * cols >= codec::kTile, "%zu", cols);
  }
}

void deterministic() {
  const Choice one = kHand.choose("");
  const Choice two = kHand.choose("");
  CHECK(one.way == two.way && one.rank == two.rank && one.predicted == two.predicted && one.bits == two.bits);
  for (std::size_t i = 0; i < codec::formats().size(); ++i) {
    const char* name = codec::formats()[i].name;
    const double scalar = format_error(*block_of(name));
    const auto best = codec::BlockCodec::make(codec::parse_spec(name), codec::best_isa());
    CHECK(scalar == format_error(*best), "%s: every rank predicts alike", name);
    CHECK(std::string(name) == "fp32" ? scalar == 0 : scalar > 1e-5 && scalar < 0.6, "%s: %g", name, scalar);
  }
  // More bits, less error.
  CHECK(format_error(*block_of("int8")) < format_error(*block_of("int6")));
  CHECK(format_error(*block_of("int6")) < format_error(*block_of("int4")));
  CHECK(format_error(*block_of("nvfp4")) < format_error(*block_of("int2")));
}

}  // namespace

int main() {
  by_hand();
  options_obeyed();
  too_wide();
  deterministic();
  return check::report("gift_choice");
}
