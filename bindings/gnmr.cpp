// The stability controller. Units and norms arrive as addresses of arrays that gcomm/gnmr.py owns.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "module.h"

namespace gcomm_python {
namespace {

using ActionRow = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, double, std::int64_t,
                             double, double>;
using UnitRow = std::tuple<double, double, double, std::uint64_t, std::int64_t, std::int64_t, std::uint32_t,
                           std::uint32_t, std::uint32_t, std::vector<double>>;
using Read = gcomm_result (*)(const gcomm_gnmr*, std::uint64_t, gcomm_gnmr_action*);

struct Gnmr {
  gcomm_gnmr* handle = nullptr;
  std::uint32_t window = 0;

  Gnmr() = default;
  Gnmr(const Gnmr&) = delete;
  Gnmr& operator=(const Gnmr&) = delete;
  ~Gnmr() { gcomm_gnmr_destroy(handle); }

  std::vector<ActionRow> rows(std::uint64_t n, Read read) const {
    std::vector<ActionRow> rows;
    rows.reserve(n);
    for (std::uint64_t i = 0; i < n; ++i) {
      gcomm_gnmr_action a{};
      a.struct_size = sizeof a;
      check(read(handle, i, &a));
      rows.emplace_back(a.unit, a.kind, a.level, a.reason, a.scale, a.until, a.rho, a.delta);
    }
    return rows;
  }
};

}  // namespace

void bind_gnmr(nb::module_& m) {
  nb::class_<Gnmr>(m, "Gnmr")
      .def(
          "__init__",
          [](Gnmr* self, double tau, double tau_delta, std::uint32_t window, std::uint32_t warmup,
             std::uint32_t max_ops, std::uint32_t lock, std::uint32_t levels) {
            new (self) Gnmr();
            gcomm_gnmr_config config{sizeof config, tau, tau_delta, window, warmup, max_ops, lock, levels, 0};
            check(gcomm_gnmr_create(&config, &self->handle));
            self->window = window;
          },
          "tau"_a, "tau_delta"_a, "window"_a, "warmup"_a, "max_ops"_a, "lock"_a, "levels"_a)
      .def_prop_ro("step",
                   [](const Gnmr& g) {
                     std::int64_t step = 0;
                     check(gcomm_gnmr_get_step(g.handle, &step));
                     return step;
                   })
      .def(
          "set_step", [](Gnmr& g, std::int64_t step) { check(gcomm_gnmr_set_step(g.handle, step)); }, "step"_a)
      .def(
          "add",
          [](Gnmr& g, const std::string& name) {
            std::uint32_t unit = 0;
            check(gcomm_gnmr_add_unit(g.handle, c_text(name, GCOMM_ERR_INVALID, "unit"), &unit));
            return unit;
          },
          "name"_a)
      .def(
          "remove", [](Gnmr& g, std::uint32_t unit) { check(gcomm_gnmr_remove_unit(g.handle, unit)); },
          "unit"_a)
      .def(
          "find",
          [](const Gnmr& g, const std::string& name) {
            std::uint32_t unit = 0;
            check(gcomm_gnmr_find_unit(g.handle, c_text(name, GCOMM_ERR_INVALID, "unit"), &unit));
            return unit;
          },
          "name"_a)
      .def(
          "level",
          [](const Gnmr& g, std::uint32_t unit) {
            std::uint32_t level = 0;
            check(gcomm_gnmr_level(g.handle, unit, &level));
            return level;
          },
          "unit"_a)
      .def(
          "observe",
          [](Gnmr& g, std::uintptr_t units, std::uintptr_t norms, std::uint64_t count, std::int64_t step) {
            std::uint64_t n_actions = 0, n_refused = 0;
            check(gcomm_gnmr_observe(g.handle, reinterpret_cast<const std::uint32_t*>(units),
                                     reinterpret_cast<const double*>(norms), count, step, &n_actions,
                                     &n_refused));
            return std::tuple(g.rows(n_actions, gcomm_gnmr_get_action),
                              g.rows(n_refused, gcomm_gnmr_get_refused));
          },
          "units"_a, "norms"_a, "count"_a, "step"_a)
      .def(
          "get",
          [](const Gnmr& g, std::uint32_t unit) {
            std::vector<double> recent(g.window);
            gcomm_gnmr_unit u{};
            u.struct_size = sizeof u;
            u.recent = recent.data();
            check(gcomm_gnmr_get_unit(g.handle, unit, &u));
            recent.resize(u.filled);
            return UnitRow(u.mean, u.rho, u.delta, u.count, u.until, u.seen, u.level, u.reason, u.next,
                           std::move(recent));
          },
          "unit"_a)
      .def(
          "set",
          [](Gnmr& g, std::uint32_t unit, UnitRow values) {
            gcomm_gnmr_unit u{};
            u.struct_size = sizeof u;
            std::vector<double>& recent = std::get<9>(values);
            std::tie(u.mean, u.rho, u.delta, u.count, u.until, u.seen, u.level, u.reason, u.next, std::ignore) =
                values;
            u.filled = static_cast<std::uint32_t>(recent.size());
            u.recent = recent.data();
            check(gcomm_gnmr_set_unit(g.handle, unit, &u));
          },
          "unit"_a, "values"_a);
  m.def(
      "norm",
      [](std::uintptr_t data, int dtype, std::uint64_t count) {
        double norm = 0;
        check_without_gil([&] {
          return gcomm_gnmr_norm(reinterpret_cast<const void*>(data), static_cast<gcomm_dtype>(dtype), count,
                                 &norm);
        });
        return norm;
      },
      "data"_a, "dtype"_a, "count"_a);
  m.def(
      "scale",
      [](std::uintptr_t data, int dtype, std::uint64_t count, double scale) {
        check_without_gil([&] {
          return gcomm_gnmr_scale(reinterpret_cast<void*>(data), static_cast<gcomm_dtype>(dtype), count, scale);
        });
      },
      "data"_a, "dtype"_a, "count"_a, "scale"_a);
}

}  // namespace gcomm_python
