// The controller through the C ABI: sizes of structs, state from one handle to another, memory that stays.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "gcomm/gcomm.h"

namespace {

gcomm_gnmr_config usual() {
  gcomm_gnmr_config config{};
  config.struct_size = sizeof config;
  config.tau = 3;
  config.tau_delta = 2;
  config.window = 8;
  config.warmup = 3;
  config.max_ops = 2;
  config.lock = 2;
  config.levels = 4;
  return config;
}

gcomm_gnmr* make() {
  const gcomm_gnmr_config config = usual();
  gcomm_gnmr* gnmr = nullptr;
  CHECK(gcomm_gnmr_create(&config, &gnmr) == GCOMM_OK);
  return gnmr;
}

void refusals() {
  gcomm_gnmr_config config = usual();
  gcomm_gnmr* gnmr = nullptr;
  config.struct_size = 8;
  CHECK(gcomm_gnmr_create(&config, &gnmr) == GCOMM_ERR_INVALID && gnmr == nullptr);
  config = usual();
  config.max_ops = 0;
  CHECK(gcomm_gnmr_create(&config, &gnmr) == GCOMM_ERR_INVALID);
  CHECK(std::strstr(gcomm_last_error(), "max_ops") != nullptr);
  CHECK(gcomm_gnmr_create(nullptr, &gnmr) == GCOMM_ERR_INVALID);

  gnmr = make();
  uint32_t unit = 9;
  CHECK(gcomm_gnmr_find_unit(gnmr, "u", &unit) == GCOMM_ERR_INVALID);
  CHECK(gcomm_gnmr_add_unit(gnmr, "u", &unit) == GCOMM_OK && unit == 0);
  CHECK(gcomm_gnmr_add_unit(gnmr, "u", &unit) == GCOMM_ERR_INVALID);
  const uint32_t twice[2] = {0, 0};
  const double norms[2] = {1, 1};
  CHECK(gcomm_gnmr_observe(gnmr, twice, norms, 2, -1, nullptr, nullptr) == GCOMM_ERR_INVALID);
  const uint32_t unknown = 7;
  CHECK(gcomm_gnmr_observe(gnmr, &unknown, norms, 1, -1, nullptr, nullptr) == GCOMM_ERR_INVALID);
  CHECK(gcomm_gnmr_observe(gnmr, nullptr, norms, 1, -1, nullptr, nullptr) == GCOMM_ERR_INVALID);
  int64_t step = 0;
  CHECK(gcomm_gnmr_get_step(gnmr, &step) == GCOMM_OK && step == -1);
  gcomm_gnmr_action action{};
  action.struct_size = sizeof action;
  CHECK(gcomm_gnmr_get_action(gnmr, 0, &action) == GCOMM_ERR_INVALID);
  gcomm_gnmr_destroy(gnmr);
  gcomm_gnmr_destroy(nullptr);
}

// A handle that gets another's state decides as it does.
void carry_over() {
  gcomm_gnmr *one = make(), *other = make();
  const char* names[2] = {"a", "b"};
  uint32_t units[2];
  for (int i = 0; i < 2; ++i) CHECK(gcomm_gnmr_add_unit(one, names[i], &units[i]) == GCOMM_OK);
  for (int step = 0; step < 20; ++step) {
    const double norms[2] = {1.0 + step % 3, step == 19 ? INFINITY : 2.0};
    CHECK(gcomm_gnmr_observe(one, units, norms, 2, -1, nullptr, nullptr) == GCOMM_OK);
  }
  CHECK(gcomm_gnmr_set_step(other, 19) == GCOMM_OK);
  for (uint32_t i = 0; i < 2; ++i) {
    std::vector<double> recent(8);
    gcomm_gnmr_unit values{};
    values.struct_size = sizeof values;
    values.recent = recent.data();
    CHECK(gcomm_gnmr_get_unit(one, units[i], &values) == GCOMM_OK);
    uint32_t number = 0;
    CHECK(std::string(values.name) == names[i] && values.filled == 8);
    CHECK(gcomm_gnmr_add_unit(other, values.name, &number) == GCOMM_OK && number == i);
    CHECK(gcomm_gnmr_set_unit(other, number, &values) == GCOMM_OK);
    values.next = 8;
    CHECK(gcomm_gnmr_set_unit(other, number, &values) == GCOMM_ERR_INVALID);
  }
  uint32_t level = 9;
  CHECK(gcomm_gnmr_level(other, 1, &level) == GCOMM_OK && level == 1);
  const double norms[2] = {40, 3};
  uint64_t acted[2], refused[2];
  CHECK(gcomm_gnmr_observe(one, units, norms, 2, 25, &acted[0], &refused[0]) == GCOMM_OK);
  CHECK(gcomm_gnmr_observe(other, units, norms, 2, 25, &acted[1], &refused[1]) == GCOMM_OK);
  CHECK(acted[0] == 1 && acted[1] == 1 && refused[0] == 0 && refused[1] == 0);
  gcomm_gnmr_action actions[2];
  std::memset(actions, 0, sizeof actions);
  for (gcomm_gnmr_action& action : actions) action.struct_size = sizeof action;
  CHECK(gcomm_gnmr_get_action(one, 0, &actions[0]) == GCOMM_OK);
  CHECK(gcomm_gnmr_get_action(other, 0, &actions[1]) == GCOMM_OK);
  CHECK(std::memcmp(&actions[0], &actions[1], sizeof actions[0]) == 0);
  CHECK(actions[0].kind == GCOMM_GNMR_CLIP && actions[0].until == 27 && actions[0].scale < 1);

  // A number is given again, without the old history.
  CHECK(gcomm_gnmr_remove_unit(one, units[0]) == GCOMM_OK);
  CHECK(gcomm_gnmr_remove_unit(one, units[0]) == GCOMM_ERR_INVALID);
  uint32_t again = 9;
  CHECK(gcomm_gnmr_add_unit(one, "c", &again) == GCOMM_OK && again == units[0]);
  CHECK(gcomm_gnmr_level(one, again, &level) == GCOMM_OK && level == 0);
  gcomm_gnmr_destroy(one);
  gcomm_gnmr_destroy(other);
}

}  // namespace

int main() {
  refusals();
  carry_over();
  return check::report("capi_gnmr");
}
