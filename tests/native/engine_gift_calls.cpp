// GIFT calls beside others and against one another: many tensors in one call, slot sizes, NaN and Inf, ranks
// that hold different bases, keys that meet another shape.
#include <cstring>
#include <limits>

#include "engine_gift.h"

using namespace gcomm;
using namespace gcomm::test;

namespace {

const char* const kTexts[] = {"gift+int8:mode=scale:rank=4",
                              "gift+int4:mode=split:rank=5",
                              "gift+int4:mode=rows:rank=6:ef=1",
                              "gift+hadamard+nvfp4:mode=split:rank=3",
                              "gift+int8:geometry=factored:refresh=1",
                              "gift+int3:geometry=elementwise:refresh=1:ef=1",
                              "gift+int4:rounding=stochastic:mode=rows:rank=17"};

// Three calls of matrices of many sizes, and some flat tensors: each as it comes out alone, whatever the slots.
void coalesced() {
  const std::vector<MatrixShape> shapes = {{64, 80}, {1, 5000}, {200, 31}, {3, 7}, {90, 400}, {64, 80}};
  for (const char* text : kTexts) {
    const std::string spec = std::string(text) + ":min_bytes=0";
    for (int ranks = 2; ranks <= 3; ++ranks) {
      World world({.size = ranks, .isa = codec::best_isa()});
      World other(
          {.size = ranks, .transport = "tcp", .slot_bytes = std::size_t{128} << 10, .isa = codec::best_isa()});
      const auto alone = make_codecs(ranks, spec), together = make_codecs(ranks, spec),
                 narrow = make_codecs(ranks, spec);
      for (int call = 0; call < 3; ++call) {
        std::vector<std::vector<Bytes>> inputs;  // by tensor, rank
        std::vector<Bytes> expected;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          inputs.push_back(
              gradients(ranks, shapes[i], Content::kGraded, 10 * call + static_cast<int>(i), DType::kF32));
          expected.push_back(reduce_matrix(world, inputs[i], shapes[i], DType::kF32, call == 1, alone,
                                           "key " + std::to_string(i)));
        }
        const auto run = [&](World& on, const std::vector<comm::Codec>& codecs) {
          auto out = inputs;
          on.all([&](int r) {
            std::vector<std::string> keys;
            for (std::size_t i = 0; i < shapes.size(); ++i) keys.push_back("key " + std::to_string(i));
            std::vector<TensorView> tensors;
            for (std::size_t i = 0; i < shapes.size(); ++i) {
              Bytes& bytes = out[i][static_cast<std::size_t>(r)];
              tensors.push_back(
                  {bytes.data(), bytes.data(), shapes[i].count(), keys[i], shapes[i].rows, shapes[i].cols});
            }
            return on[r].all_reduce(tensors.data(), tensors.size(), DType::kF32,
                                    call == 1 ? collective::Op::kAvg : collective::Op::kSum,
                                    codecs[static_cast<std::size_t>(r)], 0);
          });
          for (std::size_t i = 0; i < shapes.size(); ++i) {
            for (int r = 0; r < ranks; ++r) {
              CHECK(out[i][static_cast<std::size_t>(r)] == expected[i], "%s, %s on rank %d of %d, call %d",
                    text, shapes[i].text().c_str(), r, ranks, call);
            }
          }
        };
        run(world, together);
        run(other, narrow);
      }
      for (std::size_t r = 0; r < alone.size(); ++r) {
        CHECK(alone[r]->save() == together[r]->save() && alone[r]->save() == narrow[r]->save(), "%s: state",
              text);
      }
    }
  }
}

// One rank has a NaN or an Inf in one place. It comes out there (in a format that can say NaN: nowhere else),
// on all ranks alike; nothing is learned from it, and the next call is as good as ever.
void nonfinite() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const MatrixShape shape{96, 130};
  const std::uint64_t place = 33 * 130 + 77;
  for (const char* text : {"gift+fp8_e4m3:mode=scale:rank=4", "gift+fp8_e4m3:mode=split:rank=5",
                           "gift+fp8_e4m3:mode=rows:rank=6", "gift+fp8_e4m3:geometry=factored",
                           "gift+fp8_e4m3:mode=split:rank=5:ef=1", "gift+fp8_e4m3:mode=rows:rank=5:ef=1"}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf}) {
      World world({.size = 3, .isa = codec::best_isa()});
      const auto codecs = make_codecs(3, std::string(text) + ":min_bytes=0:refresh=1");
      for (int call = 0; call < 5; ++call) {
        std::vector<Bytes> inputs = gradients(3, shape, Content::kGraded, call, DType::kF32);
        const Exact sum = exact(inputs, DType::kF32, false);
        const bool spoilt = call == 0 || call == 3;  // before there is a basis, and with one
        if (spoilt) std::memcpy(inputs[1].data() + 4 * place, &bad, 4);
        const std::string before = codecs[0]->report();
        std::vector<WorkRef> works;
        const std::vector<float> y = to_floats(
            reduce_matrix(world, inputs, shape, DType::kF32, false, codecs, "w", false, &works), DType::kF32);
        for (const WorkRef& work : works) CHECK(work->stats().nonfinite == spoilt, "%s, call %d", text, call);
        for (std::uint64_t e = 0; e < shape.count(); ++e) {
          const bool here = spoilt && e == place;
          CHECK(std::isfinite(y[e]) != here, "%s, %g, call %d: [%llu] %g", text, static_cast<double>(bad), call,
                static_cast<unsigned long long>(e), static_cast<double>(y[e]));
          // Entries reach 40 or so, and fp8 loses a 16th of one, four times; the hole's products are missing.
          CHECK(here || std::fabs(static_cast<double>(y[e]) - sum.sum[e]) < 12,
                "%s, %g, call %d: [%llu] %g, not %g", text, static_cast<double>(bad), call,
                static_cast<unsigned long long>(e), static_cast<double>(y[e]), sum.sum[e]);
        }
        if (call == 0) {
          CHECK(codecs[0]->report().find("\"path\":\"direct\"") != std::string::npos, "%s learned from a NaN",
                text);
        }
        for (const comm::Codec& codec : codecs) CHECK(codec->report() == codecs[0]->report());
      }
    }
  }
}

// nonfinite=zero and raise.
void policies() {
  const MatrixShape shape{96, 130};
  for (const char* mode : {"mode=scale:rank=4", "mode=split:rank=5", "mode=rows:rank=6", "geometry=factored"}) {
    World world({.size = 2, .isa = codec::best_isa()});
    const auto zero = make_codecs(2, std::string("gift+int8:nonfinite=zero:min_bytes=0:") + mode);
    const auto plain = make_codecs(2, std::string("gift+int8:min_bytes=0:") + mode);
    const auto raise = make_codecs(2, std::string("gift+int8:nonfinite=raise:min_bytes=0:") + mode);
    for (int call = 0; call < 3; ++call) {
      std::vector<Bytes> inputs = gradients(2, shape, Content::kGraded, call, DType::kF32);
      std::vector<Bytes> bad = inputs;
      const float nothing = 0.0f, nan = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(inputs[call % 2 == 0 ? 0 : 1].data() + 4 * 5000, &nothing, 4);
      std::memcpy(bad[call % 2 == 0 ? 0 : 1].data() + 4 * 5000, &nan, 4);
      CHECK(reduce_matrix(world, bad, shape, DType::kF32, false, zero, "w") ==
                reduce_matrix(world, inputs, shape, DType::kF32, false, plain, "w"),
            "%s, call %d: a NaN that counts as zero", mode, call);
      reduce_matrix(world, inputs, shape, DType::kF32, false, raise, "w");
      const auto before = raise[1]->save();
      std::vector<Bytes> in = bad;
      world.all(
          [&](int r) {
            const auto i = static_cast<std::size_t>(r);
            const TensorView tensor{in[i].data(), in[i].data(), shape.count(), "w", shape.rows, shape.cols};
            return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, raise[i], 0);
          },
          Code::kNonFinite);
      CHECK(in == bad && raise[1]->save() == before, "%s: a refused NaN changes nothing", mode);
    }
  }
}

// A rank whose codec learned from something else holds another basis: all ranks say so, and nothing is written.
void different_bases() {
  const MatrixShape shape{64, 80};
  for (const char* text : kTexts) {
    const std::string spec = std::string(text) + ":min_bytes=0";
    for (int ranks = 2; ranks <= 3; ++ranks) {
      for (const char* transport : {"local", "tcp"}) {
        World world({.size = ranks, .transport = transport, .isa = codec::best_isa()});
        World single({.size = 1, .isa = codec::best_isa()});
        auto codecs = make_codecs(ranks, spec);
        const auto odd = static_cast<std::size_t>(ranks - 1);
        // The others learn from nothing; or from the same thing, each by itself.
        for (std::size_t r = 0; r < codecs.size(); ++r) {
          const Bytes own = gradients(1, shape, Content::kGraded, r == odd ? 5 : 6, DType::kF32)[0];
          reduce_matrix(single, {own}, shape, DType::kF32, false, {codecs[r]}, "w");
        }
        const std::vector<Bytes> inputs = gradients(ranks, shape, Content::kGraded, 1, DType::kF32);
        std::vector<Bytes> in = inputs;
        std::vector<std::vector<std::uint8_t>> states;
        for (const comm::Codec& codec : codecs) states.push_back(codec->save());
        const auto works = world.all(
            [&](int r) {
              const auto i = static_cast<std::size_t>(r);
              const TensorView tensor{in[i].data(), in[i].data(), shape.count(), "w", shape.rows, shape.cols};
              return world[r].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, codecs[i], 0);
            },
            Code::kMismatch);
        for (std::size_t r = 0; r < works.size(); ++r) {
          CHECK(works[r]->text() == works[0]->text() && works[r]->text().find("basis") != std::string::npos,
                "%s: %s", text, works[r]->text().c_str());
          CHECK(in[r] == inputs[r], "%s: rank %zu's tensor was written", text, r);
          CHECK(codecs[r]->save() == states[r], "%s: rank %zu's state", text, r);
        }
        // It goes on: with the same codecs under another key, and under this one once the state is the same.
        reduce_matrix(world, inputs, shape, DType::kF32, false, codecs, "another");
        codecs[odd] = make_codecs(1, spec)[0];
        codecs[odd]->load(states[0].data(), states[0].size());
        for (std::size_t r = 0; r < odd; ++r) codecs[r]->load(states[0].data(), states[0].size());
        reduce_matrix(world, inputs, shape, DType::kF32, false, codecs, "w");
      }
    }
  }
}

// One key names one matrix.
void another_shape() {
  World world({.size = 2, .isa = codec::best_isa()});
  for (const char* text : {"gift+int8", "gift+int8:ef=1:geometry=factored"}) {
    const auto codecs = make_codecs(2, text);
    const MatrixShape shape{64, 80};
    reduce_matrix(world, gradients(2, shape, Content::kGraded, 0, DType::kF32), shape, DType::kF32, false,
                  codecs, "w");
    std::vector<float> data(10000);
    for (const MatrixShape& other :
         {MatrixShape{80, 64}, MatrixShape{1, 64 * 80}, MatrixShape{10, 10}, MatrixShape{0, 0}}) {
      const std::uint64_t count = other.rows == 0 ? 64 * 80 : other.count();
      const TensorView tensor{data.data(), data.data(), count, "w", other.rows, other.cols};
      CHECK_THROWS(world[0].all_reduce(&tensor, 1, DType::kF32, collective::Op::kSum, codecs[0], 0),
                   Code::kInvalid);
    }
    const TensorView wrong{data.data(), data.data(), 100, "v", 7, 13};
    CHECK_THROWS(world[0].all_reduce(&wrong, 1, DType::kF32, collective::Op::kSum, codecs[0], 0),
                 Code::kInvalid);
    const TensorView nameless{data.data(), data.data(), 100, {}, 10, 10};
    CHECK_THROWS(world[0].all_reduce(&nameless, 1, DType::kF32, collective::Op::kSum, codecs[0], 0),
                 Code::kInvalid);
    const TensorView twice[] = {{data.data(), data.data(), 100, "v", 10, 10},
                                {data.data() + 100, data.data() + 100, 100, "v", 10, 10}};
    CHECK_THROWS(world[0].all_reduce(twice, 2, DType::kF32, collective::Op::kSum, codecs[0], 0),
                 Code::kInvalid);
    // Nothing was queued by any of them.
    reduce_matrix(world, gradients(2, shape, Content::kGraded, 1, DType::kF32), shape, DType::kF32, false,
                  codecs, "w");
  }
}

// Sides and whole matrices travel in the same workspaces as everything.
void workspaces() {
  const MatrixShape shape{600, 1400};
  const std::vector<Bytes> inputs = gradients(2, shape, Content::kGraded, 0, DType::kF32);
  for (const char* text :
       {"gift+int4:mode=scale:rank=8", "gift+int4:mode=split:rank=8", "gift+int4:mode=rows:rank=8"}) {
    World world({.size = 2, .isa = codec::best_isa()});
    const auto codecs = make_codecs(2, text);
    for (int call = 0; call < 3; ++call) reduce_matrix(world, inputs, shape, DType::kF32, false, codecs, "w");
    const std::uint64_t encoded = codecs[0]->block().max_encoded_bytes(shape.count());
    for (int r = 0; r < 2; ++r) {
      CHECK(world[r].stats().workspace_bytes <= 2 * encoded + (std::uint64_t{16} << 20), "%s: %llu", text,
            static_cast<unsigned long long>(world[r].stats().workspace_bytes));
    }
  }
}

// Rows as wide as a group may be in the shortest slots, and too wide ones, which go direct.
void wide_rows() {
  World world({.size = 2, .slot_bytes = std::size_t{128} << 10, .isa = codec::best_isa()});
  for (const MatrixShape& shape :
       {MatrixShape{70, 2601}, MatrixShape{70, 2603}, MatrixShape{9, 65536}, MatrixShape{9, 40001}}) {
    for (const char* text :
         {"gift+int4:mode=rows:rank=6", "gift+int4:mode=rows:rank=8:side=bf16", "gift+fp32:mode=rows:rank=2"}) {
      const auto codecs = make_codecs(2, std::string(text) + ":min_bytes=0");
      for (int call = 0; call < 2; ++call) {
        reduce_matrix(world, gradients(2, shape, Content::kLowRank, call, DType::kF32), shape, DType::kF32,
                      false, codecs, "w");
      }
    }
  }
}

}  // namespace

int main() {
  coalesced();
  nonfinite();
  policies();
  different_bases();
  another_shape();
  workspaces();
  wide_rows();
  return check::report("engine_gift_calls");
}
