// The stability controller: gcomm/gnmr.h.
#include <algorithm>
#include <cmath>

#include "base/fp_env.h"
#include "capi/guard.h"
#include "comm/arguments.h"
#include "gnmr/controller.h"
#include "gnmr/values.h"

using gcomm::Code;
using gcomm::Error;
using gcomm::capi::guard;
using gcomm::capi::read_struct;
using gcomm::capi::required;
using gcomm::capi::required_memory;
using gcomm::capi::write_struct;
using gcomm::gnmr::Action;
using gcomm::gnmr::Unit;

struct gcomm_gnmr {
  gcomm::gnmr::Controller controller;
};

namespace {

void write_action(const std::vector<Action>& from, uint64_t index, gcomm_gnmr_action* to) {
  if (index >= from.size()) {
    throw Error(Code::kInvalid,
                "index: " + std::to_string(index) + ", expected below " + std::to_string(from.size()));
  }
  const Action& action = from[index];
  gcomm_gnmr_action values{};
  values.unit = action.unit;
  values.kind = static_cast<uint32_t>(action.kind);
  values.level = action.level;
  values.reason = static_cast<uint32_t>(action.reason);
  values.scale = action.scale;
  values.until = action.until;
  values.rho = action.rho;
  values.delta = action.delta;
  write_struct(to, values, "gcomm_gnmr_action");
}

}  // namespace

extern "C" {

gcomm_result gcomm_gnmr_create(const gcomm_gnmr_config* config, gcomm_gnmr** gnmr) {
  return guard([&] {
    required(gnmr, "gnmr") = nullptr;
    const gcomm_gnmr_config from = read_struct(required(config, "config"), "gcomm_gnmr_config");
    gcomm::gnmr::Config values;
    values.tau = from.tau;
    values.tau_delta = from.tau_delta;
    values.window = from.window;
    values.warmup = from.warmup;
    values.max_ops = from.max_ops;
    values.lock = from.lock;
    values.levels = from.levels;
    *gnmr = new gcomm_gnmr{gcomm::gnmr::Controller(values)};
  });
}

void gcomm_gnmr_destroy(gcomm_gnmr* gnmr) { delete gnmr; }

gcomm_result gcomm_gnmr_get_step(const gcomm_gnmr* gnmr, int64_t* step) {
  return guard([&] { required(step, "step") = required(gnmr, "gnmr").controller.step(); });
}

gcomm_result gcomm_gnmr_set_step(gcomm_gnmr* gnmr, int64_t step) {
  return guard([&] { required(gnmr, "gnmr").controller.set_step(step); });
}

gcomm_result gcomm_gnmr_add_unit(gcomm_gnmr* gnmr, const char* name, uint32_t* unit) {
  return guard([&] {
    gcomm_gnmr& target = required(gnmr, "gnmr");
    required_memory(name, "name");
    uint32_t& number = required(unit, "unit");
    number = target.controller.add(name);
  });
}

gcomm_result gcomm_gnmr_remove_unit(gcomm_gnmr* gnmr, uint32_t unit) {
  return guard([&] { required(gnmr, "gnmr").controller.remove(unit); });
}

gcomm_result gcomm_gnmr_find_unit(const gcomm_gnmr* gnmr, const char* name, uint32_t* unit) {
  return guard([&] {
    required_memory(name, "name");
    required(unit, "unit") = required(gnmr, "gnmr").controller.find(name);
  });
}

gcomm_result gcomm_gnmr_get_unit(const gcomm_gnmr* gnmr, uint32_t unit, gcomm_gnmr_unit* values) {
  return guard([&] {
    const auto& controller = required(gnmr, "gnmr").controller;
    double* const recent = read_struct(required(values, "values"), "gcomm_gnmr_unit").recent;
    const Unit& from = controller.unit(unit);
    gcomm_gnmr_unit to{};
    to.name = controller.name(unit).c_str();
    to.mean = from.mean;
    to.rho = from.rho;
    to.delta = from.delta;
    to.count = from.count;
    to.until = from.until;
    to.seen = from.seen;
    to.level = from.level;
    to.reason = static_cast<uint32_t>(from.reason);
    to.filled = from.filled;
    to.next = from.next;
    to.recent = recent;
    if (to.recent != nullptr) std::copy_n(controller.recent(unit), from.filled, to.recent);
    write_struct(values, to, "gcomm_gnmr_unit");
  });
}

gcomm_result gcomm_gnmr_set_unit(gcomm_gnmr* gnmr, uint32_t unit, const gcomm_gnmr_unit* values) {
  return guard([&] {
    auto& controller = required(gnmr, "gnmr").controller;
    const gcomm_gnmr_unit from = read_struct(required(values, "values"), "gcomm_gnmr_unit");
    if (from.filled > 0) required_memory(from.recent, "values.recent");
    Unit to;
    to.mean = from.mean;
    to.rho = from.rho;
    to.delta = from.delta;
    to.count = from.count;
    to.until = from.until;
    to.seen = from.seen;
    to.level = from.level;
    to.reason = static_cast<gcomm::gnmr::Reason>(from.reason);
    to.filled = from.filled;
    to.next = from.next;
    controller.restore(unit, to, from.recent);
  });
}

gcomm_result gcomm_gnmr_level(const gcomm_gnmr* gnmr, uint32_t unit, uint32_t* level) {
  return guard([&] { required(level, "level") = required(gnmr, "gnmr").controller.level(unit); });
}

gcomm_result gcomm_gnmr_observe(gcomm_gnmr* gnmr, const uint32_t* units, const double* norms, uint64_t n,
                                int64_t step, uint64_t* n_actions, uint64_t* n_refused) {
  return guard([&] {
    auto& controller = required(gnmr, "gnmr").controller;
    if (n > 0) required_memory(units, "units");
    if (n > 0) required_memory(norms, "norms");
    const gcomm::FpEnvironment environment;
    controller.observe(units, norms, n, step == -1 ? controller.step() + 1 : step);
    if (n_actions != nullptr) *n_actions = controller.actions().size();
    if (n_refused != nullptr) *n_refused = controller.refused().size();
  });
}

gcomm_result gcomm_gnmr_get_action(const gcomm_gnmr* gnmr, uint64_t index, gcomm_gnmr_action* action) {
  return guard([&] { write_action(required(gnmr, "gnmr").controller.actions(), index, action); });
}

gcomm_result gcomm_gnmr_get_refused(const gcomm_gnmr* gnmr, uint64_t index, gcomm_gnmr_action* action) {
  return guard([&] { write_action(required(gnmr, "gnmr").controller.refused(), index, action); });
}

gcomm_result gcomm_gnmr_norm(const void* data, gcomm_dtype dtype, uint64_t count, double* norm) {
  return guard([&] {
    const auto type = static_cast<gcomm::DType>(dtype);
    gcomm::comm::check_reducible(type);
    if (count > 0) required_memory(data, "data");
    const gcomm::FpEnvironment environment;
    required(norm, "norm") = gcomm::gnmr::norm(data, type, count);
  });
}

gcomm_result gcomm_gnmr_scale(void* data, gcomm_dtype dtype, uint64_t count, double scale) {
  return guard([&] {
    const auto type = static_cast<gcomm::DType>(dtype);
    gcomm::comm::check_reducible(type);
    if (count > 0) required_memory(data, "data");
    if (!std::isfinite(scale)) throw Error(Code::kInvalid, "scale: expected a finite number");
    const gcomm::FpEnvironment environment;
    gcomm::gnmr::scale(data, type, count, scale);
  });
}

}  // extern "C"
