// One observe() of many units through the C ABI, median of many. One JSON object on stdout.
//
//   gnmr_speed [UNITS] [WINDOW]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gcomm/gcomm.h"

int main(int argc, char** argv) {
  const auto count = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 1000);
  gcomm_gnmr_config config{sizeof config, 3.0, 2.0, 32, 10, 8, 20, 4, 0};
  if (argc > 2) config.window = static_cast<std::uint32_t>(std::atoi(argv[2]));
  gcomm_gnmr* gnmr = nullptr;
  if (gcomm_gnmr_create(&config, &gnmr) != GCOMM_OK) {
    std::fprintf(stderr, "%s\n", gcomm_last_error());
    return 1;
  }
  std::vector<std::uint32_t> units(count);
  std::vector<double> norms(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (gcomm_gnmr_add_unit(gnmr, ("unit" + std::to_string(i)).c_str(), &units[i]) != GCOMM_OK) return 1;
  }
  std::vector<double> seconds;
  std::uint64_t actions = 0;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    for (std::uint32_t i = 0; i < count; ++i) {
      // A spike now and then, so that recoveries are in it.
      norms[i] = 1.0 + 0.001 * ((step * 7 + i * 13) % 101) + ((step * 31 + i) % 10007 == 0 ? 20.0 : 0.0);
    }
    std::uint64_t acted = 0;
    const auto begin = std::chrono::steady_clock::now();
    if (gcomm_gnmr_observe(gnmr, units.data(), norms.data(), count, -1, &acted, nullptr) != GCOMM_OK) return 1;
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    actions += acted;
  }
  std::nth_element(seconds.begin(), seconds.begin() + 1000, seconds.end());
  std::printf("{\"caller\": \"C\", \"units\": %u, \"window\": %u, \"observe_us\": %.2f, \"actions\": %llu}\n",
              count, config.window, seconds[1000] * 1e6, static_cast<unsigned long long>(actions));
  gcomm_gnmr_destroy(gnmr);
}
