// One-thread speed of MAPL's vector quantiser, encoding against the peak of the processor's fused multiply-adds
// measured in turn in the same run. One JSON object a line.
//
//   rvq_speed [--repeats 7] [--isa NAME] [--tokens 2048] [--dim 64]
//
// gflops counts the distances' arithmetic alone: 2 subvector operations a codeword, stage and sub-vector.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "fma_peak.h"
#include "mapl/rvq.h"
#include "thread_time.h"

namespace {

using benchmark::seconds;
using gcomm::DType;
using gcomm::codec::Isa;
using namespace gcomm::mapl;

struct Options {
  int repeats = 7;
  Isa isa = gcomm::codec::best_isa();
  std::size_t tokens = 2048;
  std::size_t dim = 64;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--repeats") {
      options.repeats = std::atoi(argv[i + 1]);
    } else if (word == "--isa") {
      options.isa = gcomm::codec::parse_isa(argv[i + 1]);
    } else if (word == "--tokens") {
      options.tokens = std::strtoul(argv[i + 1], nullptr, 10);
    } else if (word == "--dim") {
      options.dim = std::strtoul(argv[i + 1], nullptr, 10);
    }
  }
  return options;
}

void run(const Options& options, const CodebookShape& shape) {
  std::vector<float> z(options.tokens * options.dim);
  std::uint64_t state = 1;
  for (float& v : z) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
  }
  const Rows rows = {z.data(), DType::kF32, options.tokens, options.dim};
  RowCoder coder(options.isa);
  Learner learner(shape, 0);
  coder.update(learner, rows);
  const Codebook& book = learner.codebook();
  std::vector<std::uint8_t> bytes(encoded_bytes(shape, options.dim, options.tokens));
  std::vector<float> back(z.size());
  double peak = 1e30;
  double encode = 1e30;
  double decoded = 1e30;
  double update = 1e30;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    peak = std::min(peak, seconds(benchmark::peak_work));
    encode = std::min(encode, seconds([&] { coder.encode(book, rows, bytes.data()); }));
    decoded = std::min(decoded, seconds([&] {
                         decode(book, bytes.data(), bytes.size(), back.data(), DType::kF32, options.tokens,
                                options.dim);
                       }));
    update = std::min(update, seconds([&] { coder.update(learner, rows); }));
  }
  const double vectors = static_cast<double>(options.tokens * subvectors(options.dim, shape.subvector));
  const double flops = 2.0 * vectors * static_cast<double>(shape.values());
  const double peak_gflops = benchmark::has_peak() ? 1e-9 * benchmark::kPeakFlops / peak : 0.0;
  const double gflops = 1e-9 * flops / encode;
  std::printf(
      "{\"isa\": \"%s\", \"subvector\": %zu, \"stages\": %zu, \"codewords\": %zu, \"tokens\": %zu, \"dim\": "
      "%zu, "
      "\"encode_us\": %.1f, \"decode_us\": %.1f, \"update_us\": %.1f, \"gflops\": %.2f, \"peak_gflops\": %.1f, "
      "\"fraction\": %.3f, \"decode_times_faster\": %.1f}\n",
      gcomm::codec::isa_name(options.isa), shape.subvector, shape.stages, shape.codewords, options.tokens,
      options.dim, 1e6 * encode, 1e6 * decoded, 1e6 * update, gflops, peak_gflops,
      benchmark::has_peak() ? gflops / peak_gflops : 0.0, encode / decoded);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    for (const CodebookShape& shape :
         {CodebookShape{8, 4, 256}, CodebookShape{8, 2, 256}, CodebookShape{8, 4, 64}, CodebookShape{4, 2, 16},
          CodebookShape{16, 4, 256}}) {
      run(options, shape);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rvq_speed: %s\n", error.what());
    return 1;
  }
  return 0;
}
