// What ranks tell one another to learn alike: the owner's basis (broadcast_basis), and moments of the shards of
// a reduce_scatter (factored).
#include <cstring>
#include <limits>

#include "engine_gift.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

std::uint64_t sent_bytes(const std::vector<WorkRef>& works) {
  std::uint64_t sum = 0;
  for (const WorkRef& work : works) sum += work->stats().wire_bytes;
  return sum;
}

// The same input gives the same basis on every rank, so sending it changes no bit; but it is sent.
void broadcast_basis() {
  const MatrixShape shape{64, 80};
  for (const char* transport : {"local", "tcp"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      World world({.size = ranks, .transport = transport, .isa = codec::best_isa()});
      for (const char* text :
           {"gift+int8:mode=scale:rank=4", "gift+int4:mode=split:rank=5:ef=1", "gift+int4:mode=rows:rank=6"}) {
        const auto own = make_codecs(ranks, std::string(text) + ":min_bytes=0:refresh=2");
        const auto sent = make_codecs(ranks, std::string(text) + ":min_bytes=0:refresh=2:broadcast_basis=1");
        for (int call = 0; call < 6; ++call) {
          std::vector<Bytes> inputs =
              gradients(ranks, shape, call == 0 ? Content::kZero : Content::kGraded, call, DType::kF32);
          const float nan = std::numeric_limits<float>::quiet_NaN();
          if (call == 1 || call == 4) std::memcpy(inputs[0].data() + 400, &nan, 4);
          std::vector<WorkRef> works;
          const Bytes expected =
              reduce_matrix(world, inputs, shape, DType::kF32, call % 2 == 1, own, "w", false, &works);
          const std::uint64_t bytes = sent_bytes(works);
          const Bytes result =
              reduce_matrix(world, inputs, shape, DType::kF32, call % 2 == 1, sent, "w", false, &works);
          CHECK(result == expected, "%s over %s, %d ranks, call %d", text, transport, ranks, call);
          // The owner sends U and V of the rank asked for at least, when a refresh is due.
          const std::uint64_t basis = call == 2 ? static_cast<std::uint64_t>(ranks - 1) * 4 * (64 + 80) * 4 : 0;
          CHECK(sent_bytes(works) >= bytes + basis, "%s: nothing was sent", text);
        }
        for (std::size_t r = 1; r < sent.size(); ++r) CHECK(sent[r]->report() == sent[0]->report());
        CHECK(sent[0]->report().find("\"path\":\"direct\"") == std::string::npos, "%s", text);
      }
    }
  }
}

// Every rank's shard, one after the other; the weights' effect shows in what small rows lose.
std::vector<float> scatter(World& world, const std::vector<Bytes>& inputs, const MatrixShape& shape,
                           bool average, const std::vector<comm::Codec>& codecs) {
  const auto ranks = static_cast<std::uint64_t>(world.size());
  const std::uint64_t shard = shape.count() / ranks;
  std::vector<std::vector<float>> out(ranks, std::vector<float>(shard, -7.0f));
  world.all([&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return world[r].reduce_scatter({inputs[i].data(), out[i].data(), shard, "w", shape.rows, shape.cols},
                                   DType::kF32, average ? collective::Op::kAvg : collective::Op::kSum,
                                   codecs[i], 0);
  });
  std::vector<float> all;
  for (const auto& part : out) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Every other row is a thousandth of its neighbours, in blocks that hold both.
std::vector<Bytes> striped(int ranks, const MatrixShape& shape, int step) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < ranks; ++r) {
    std::vector<float> x = gradient(shape, Content::kGraded, r, step);
    for (std::uint64_t e = 0; e < x.size(); ++e) x[e] *= e / shape.cols % 2 == 0 ? 1.0f : 0.01f;
    inputs.push_back(from_floats(x, DType::kF32));
  }
  return inputs;
}

void reduce_scatter() {
  const MatrixShape shape{96, 50};  // shards of 50 to 96 rows, which are no multiple of a tile
  for (const char* transport : {"local", "tcp"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      World world({.size = ranks, .transport = transport, .isa = codec::best_isa()});
      for (const char* options : {"", ":ef=1"}) {
        const auto codecs =
            make_codecs(ranks, std::string("gift+int4:geometry=factored:min_bytes=0:refresh=2") + options);
        const auto direct = make_codecs(ranks, std::string("int4:min_bytes=0") + options);
        for (int call = 0; call < 6; ++call) {
          const bool average = call % 2 == 1;
          const std::vector<Bytes> inputs = striped(ranks, shape, call);
          const Exact sum = exact(inputs, DType::kF32, average);
          const auto loss_of_small_rows = [&](const std::vector<float>& y) {
            double lost = 0, all = 0;
            for (std::uint64_t e = 0; e < shape.count(); ++e) {
              if (e / shape.cols % 2 == 0) continue;
              lost += std::pow(static_cast<double>(y[e]) - sum.sum[e], 2);
              all += std::pow(sum.sum[e], 2);
            }
            return std::sqrt(lost / all);
          };
          const double lost = loss_of_small_rows(scatter(world, inputs, shape, average, codecs));
          const double lost_direct = loss_of_small_rows(scatter(world, inputs, shape, average, direct));
          if (ranks == 1) continue;  // a single rank's own sum is not quantised
          // Weighted, a small row loses what a row of int4 loses; direct, all of it.
          CHECK(lost_direct > 0.4, "%g", lost_direct);
          // (The first sum shows small rows as zeros; what the first calls lost comes later under error
          // feedback.)
          if (call > (codecs[0]->error_feedback() ? 2 : 1))
            CHECK(lost < 0.3, "%d ranks over %s, call %d: %g", ranks, transport, call, lost);
        }
        for (const comm::Codec& codec : codecs) CHECK(codec->report() == codecs[0]->report());
      }
    }
  }
}

// A NaN in one shard keeps everybody from learning.
void nonfinite_shard() {
  const MatrixShape shape{96, 50};
  World world({.size = 3, .isa = codec::best_isa()});
  const auto codecs = make_codecs(3, "gift+int8:geometry=factored:min_bytes=0:refresh=1");
  std::vector<Bytes> inputs = striped(3, shape, 0);
  const float inf = std::numeric_limits<float>::infinity();
  std::memcpy(inputs[2].data() + 400, &inf, 4);
  scatter(world, inputs, shape, false, codecs);
  for (const comm::Codec& codec : codecs)
    CHECK(codec->report().find("\"path\":\"direct\"") != std::string::npos);
  scatter(world, striped(3, shape, 1), shape, false, codecs);
  const auto paths = [&](const char* path) {
    for (const comm::Codec& codec : codecs)
      CHECK(codec->report().find(path) != std::string::npos, "%s", codec->report().c_str());
  };
  paths("by row and column");
  scatter(world, inputs, shape, false, codecs);
  scatter(world, striped(3, shape, 2), shape, false, codecs);
  paths("by row and column");
}

}  // namespace

int main() {
  broadcast_basis();
  reduce_scatter();
  nonfinite_shard();
  return check::report("engine_gift_shared");
}
