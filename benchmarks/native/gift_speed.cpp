// One-thread speed of GIFT's products, against the peak of the processor's fused multiply-adds measured in turn
// in the same run. One JSON object a line.
//
//   gift_speed [--repeats 7] [--isa NAME] [ROWSxCOLS...]
//
// products: both of them, 4 rows cols rank operations. left, right: one of them. rank_update: of rank 2 rank,
// as encoding and decoding do, the whole matrix in one call (or, the last kernel, 4096 elements a call).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "fma_peak.h"
#include "gift/products.h"
#include "thread_time.h"

namespace {

using benchmark::seconds;
using gcomm::codec::Isa;

struct Shape {
  std::size_t rows;
  std::size_t cols;
};
struct Options {
  int repeats = 7;
  Isa isa = gcomm::codec::best_isa();
  std::vector<Shape> shapes;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--repeats") {
      options.repeats = std::atoi(i + 1 < argc ? argv[++i] : "1");
    } else if (word == "--isa") {
      options.isa = gcomm::codec::parse_isa(i + 1 < argc ? argv[++i] : "");
    } else {
      char* rest = nullptr;
      const std::size_t rows = std::strtoul(word.c_str(), &rest, 10);
      options.shapes.push_back({rows, *rest == 'x' ? std::strtoul(rest + 1, nullptr, 10) : rows});
    }
  }
  if (options.shapes.empty()) {
    options.shapes = {{1024, 4096}, {4096, 4096}, {2752, 1024}};
  }
  return options;
}

std::vector<float> values(std::size_t count, std::uint64_t seed) {
  std::vector<float> x(count);
  for (float& v : x) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-36f;
  }
  return x;
}

void run(const Options& options, Shape shape, std::size_t rank) {
  const std::size_t rows = shape.rows;
  const std::size_t cols = shape.cols;
  const std::vector<float> x = values(rows * cols, 1);
  const std::vector<float> u = values(rows * rank, 2);
  const std::vector<float> v = values(cols * rank, 3);
  const std::vector<float> l = values(rows * 2 * rank, 4);
  const std::vector<float> r = values(cols * 2 * rank, 5);
  std::vector<float> y = x;
  std::vector<float> left(rank * cols);
  std::vector<float> right(rank * rows);
  gcomm::gift::MatrixView g;
  g.data = x.data();
  g.rows = rows;
  g.cols = cols;
  struct Kernel {
    const char* name;
    double flops;  // over 2 rows cols rank
    std::function<void()> work;
  };
  const auto products = [&](bool with_left, bool with_right) {
    gcomm::gift::products(g, 0, rows, rank, with_left ? u.data() : nullptr, with_left ? left.data() : nullptr,
                          with_right ? v.data() : nullptr, with_right ? right.data() : nullptr, options.isa);
  };
  const auto update = [&](std::size_t part) {
    for (std::size_t at = 0; at < y.size(); at += part) {
      gcomm::gift::rank_update(y.data() + at, at, std::min(part, y.size() - at), cols, 2 * rank, l.data(),
                               r.data(), options.isa);
    }
  };
  const std::vector<Kernel> kernels = {
      {"products", 2, [&] { products(true, true); }}, {"left", 1, [&] { products(true, false); }},
      {"right", 1, [&] { products(false, true); }},   {"rank_update", 2, [&] { update(y.size()); }},
      {"rank_update_tile", 2, [&] { update(4096); }},
  };
  std::vector<double> best(kernels.size(), 1e30);
  double peak_time = 1e30;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    if (benchmark::has_peak()) {
      peak_time = std::min(peak_time, seconds(benchmark::peak_work));
    }
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      best[i] = std::min(best[i], seconds(kernels[i].work));
    }
  }
  const double peak = benchmark::has_peak() ? 1e-9 * benchmark::kPeakFlops / peak_time : 0.0;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const double speed = 2e-9 * kernels[i].flops * static_cast<double>(rows * cols * rank) / best[i];
    std::printf(
        "{\"kernel\": \"%s\", \"isa\": \"%s\", \"rows\": %zu, \"cols\": %zu, \"rank\": %zu, \"gflops\": %.1f, "
        "\"peak_gflops\": %.1f, \"fraction\": %.3f}\n",
        kernels[i].name, gcomm::codec::isa_name(options.isa), rows, cols, rank, speed, peak,
        benchmark::has_peak() ? speed / peak : 0.0);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    for (const Shape shape : options.shapes) {
      for (const std::size_t rank : {std::size_t{8}, std::size_t{16}, std::size_t{32}}) {
        run(options, shape, rank);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gift_speed: %s\n", error.what());
    return 1;
  }
  return 0;
}
