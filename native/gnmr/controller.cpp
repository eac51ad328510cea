#include "gnmr/controller.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace gcomm::gnmr {
namespace {

[[noreturn]] void invalid(const std::string& text) { throw Error(Code::kInvalid, text); }

void require_threshold(double value, const char* name) {
  // NaN too.
  if (!(value >= 1)) {
    invalid(std::string(name) + ": expected a number of 1 or more, got " + std::to_string(value));
  }
}

void require_range(std::uint32_t value, std::uint32_t least, std::uint32_t most, const char* name) {
  if (value < least || value > most) {
    invalid(std::string(name) + ": expected " + std::to_string(least) + " to " + std::to_string(most) +
            ", got " + std::to_string(value));
  }
}

constexpr std::uint32_t kMost = 1u << 20;
// Of the rho that is remembered: sums of as many as a window has stay finite.
constexpr double kMostRho = 1e150;
constexpr std::int64_t kLastStep = std::int64_t{1} << 62;

}  // namespace

Controller::Controller(const Config& config) : config_(config) {
  require_threshold(config.tau, "tau");
  require_threshold(config.tau_delta, "tau_delta");
  require_range(config.window, 1, kMost, "window");
  require_range(config.warmup, 0, 1u << 30, "warmup");
  require_range(config.max_ops, 1, 1u << 30, "max_ops");
  require_range(config.lock, 1, 1u << 30, "lock");
  require_range(config.levels, 1, kMost, "levels");
}

void Controller::set_step(std::int64_t step) {
  if (step < -1 || step > kLastStep) invalid("step: expected -1 to 2^62, got " + std::to_string(step));
  step_ = step;
}

std::uint32_t Controller::require(std::uint32_t unit) const {
  if (!in_use(unit)) invalid("unit: no unit has the number " + std::to_string(unit));
  return unit;
}

std::uint32_t Controller::add(std::string_view name) {
  if (by_name_.contains(name)) invalid("unit: there is one named '" + std::string(name) + "' already");
  std::uint32_t unit = 0;
  if (free_.empty()) {
    unit = static_cast<std::uint32_t>(units_.size());
    units_.emplace_back();
    recent_.resize(recent_.size() + config_.window);
    names_.emplace_back();
    used_.push_back(0);
    marks_.push_back(0);
  } else {
    unit = free_.back();
    free_.pop_back();
  }
  units_[unit] = Unit();
  std::fill_n(recent_.begin() + static_cast<std::ptrdiff_t>(unit * std::size_t{config_.window}), config_.window,
              0.0);
  names_[unit] = name;
  by_name_.emplace(name, unit);
  used_[unit] = 1;
  return unit;
}

void Controller::remove(std::uint32_t unit) {
  by_name_.erase(names_[require(unit)]);
  used_[unit] = 0;
  free_.push_back(unit);
}

std::uint32_t Controller::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) invalid("unit: none is named '" + std::string(name) + "'");
  return found->second;
}

void Controller::restore(std::uint32_t unit, const Unit& values, const double* recent) {
  require(unit);
  const auto wrong = [&](const char* what) { invalid("unit '" + names_[unit] + "': " + what); };
  const bool finite = std::isfinite(values.mean) && values.mean >= 0;
  if (!finite) wrong("its mean is not a finite number of 0 or more");
  if (std::isnan(values.rho) || std::isnan(values.delta)) wrong("its rho or its delta is not a number");
  if (values.filled > config_.window || values.next >= config_.window) wrong("it holds more than the window");
  // Until the window is full, the next rho comes behind those that are there.
  if (values.filled < config_.window && values.next != values.filled) wrong("its next place is not behind the last");
  if (values.level >= config_.levels) wrong("its level is beyond the levels");
  if (values.reason > Reason::kNonFinite) wrong("its reason is unknown");
  const bool ends = values.until <= kLastStep + config_.lock;  // as an observation can make it
  if (!ends || values.until < Unit::kNever || values.seen < Unit::kNever || values.seen > step_) {
    wrong("its steps do not fit the controller's");
  }
  for (std::uint32_t i = 0; i < values.filled; ++i) {
    if (!(recent[i] >= 0 && recent[i] <= std::min(config_.tau, kMostRho)))
      wrong("a remembered rho is not in 0 to tau");
  }
  units_[unit] = values;
  std::copy_n(recent, values.filled, &recent_[unit * std::size_t{config_.window}]);
}

void Controller::check(const std::uint32_t* units, const double* norms, std::size_t n, std::int64_t step) {
  if (step < 0 || step > kLastStep) invalid("step: expected 0 to 2^62, got " + std::to_string(step));
  if (step < step_) {
    invalid("step: " + std::to_string(step) + " comes after " + std::to_string(step_) +
            "; time does not run backwards (after a resume, load the state that was saved with the step)");
  }
  ++calls_;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t unit = require(units[i]);
    if (marks_[unit] == calls_) invalid("units: '" + names_[unit] + "' is there twice");
    marks_[unit] = calls_;
    if (units_[unit].seen == step) {
      invalid("unit '" + names_[unit] + "': its norm of step " + std::to_string(step) +
              " was observed already");
    }
    if (norms[i] < 0) {
      invalid("unit '" + names_[unit] + "': expected a norm of 0 or more, got " + std::to_string(norms[i]));
    }
  }
}

// Four sums, one for every fourth place, added up pairwise: the same order everywhere.
double Controller::recent_mean(std::uint32_t unit) const noexcept {
  const std::uint32_t n = units_[unit].filled;
  if (n == 0) return 1;
  const double* values = &recent_[unit * std::size_t{config_.window}];
  double sums[4] = {0, 0, 0, 0};
  std::uint32_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::uint32_t j = 0; j < 4; ++j) sums[j] += values[i + j];
  }
  for (std::uint32_t j = 0; i < n; ++i, ++j) sums[j] += values[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) / n;
}

// rho, delta, and why the unit is at risk, if it is.
void Controller::measure(std::uint32_t unit, double norm, Action& action) {
  Unit& u = units_[unit];
  if (!std::isfinite(norm)) {
    action.rho = action.delta = std::numeric_limits<double>::infinity();
    action.reason = Reason::kNonFinite;
    return;
  }
  if (u.count > 0 && u.mean == 0 && norm > 0) {
    // Nothing but zeros so far is nothing to compare with.
    u.count = 0;
    u.filled = u.next = 0;
  }
  action.rho = u.count == 0 || (u.mean == 0 && norm == 0) ? 1 : norm / u.mean;
  action.delta = action.rho - recent_mean(unit);
  if (u.count == 0 || u.count < config_.warmup) return;
  if (action.rho > config_.tau) {
    action.reason = Reason::kRho;
  } else if (action.delta > config_.tau_delta) {
    action.reason = Reason::kDelta;
  }
}

// The norm, or what it would be clipped to, goes into the history, whatever became of the unit. In warm-up
// values enter as they are: nobody has clipped them.
void Controller::remember(std::uint32_t unit, double norm) {
  Unit& u = units_[unit];
  const bool warm = u.count > 0 && u.count >= config_.warmup;
  const double value = warm ? std::min(norm, config_.tau * u.mean) : norm;
  double* values = &recent_[unit * std::size_t{config_.window}];
  values[u.next] = std::min({u.rho, config_.tau, kMostRho});
  u.next = u.next + 1 == config_.window ? 0 : u.next + 1;
  u.filled = std::min(u.filled + 1, config_.window);
  ++u.count;
  u.mean += (value - u.mean) / static_cast<double>(std::min<std::uint64_t>(u.count, config_.window));
}

// The largest rho first; of equals, that whose name comes first, so that no order of arguments matters.
bool Controller::before(const Action& a, const Action& b) const {
  return a.rho != b.rho ? a.rho > b.rho : names_[a.unit] < names_[b.unit];
}

// A recovery of the steps after this one. A unit that is at risk again within `lock` steps of its last lock
// goes one level further than then.
void Controller::grant(Action& action) {
  Unit& u = units_[action.unit];
  const bool again = u.until != Unit::kNever && step_ - u.until <= static_cast<std::int64_t>(config_.lock);
  u.level = std::min((again ? u.level : 0) + 1, config_.levels - 1);
  u.until = step_ + config_.lock;
  u.reason = action.reason;
  action.level = u.level;
  action.until = u.until;
}

void Controller::observe(const std::uint32_t* units, const double* norms, std::size_t n, std::int64_t step) {
  check(units, norms, n, step);
  step_ = step;
  actions_.clear();
  refused_.clear();
  at_risk_.clear();
  for (std::size_t i = 0; i < n; ++i) {
    Action action;
    action.unit = units[i];
    measure(units[i], norms[i], action);
    Unit& u = units_[units[i]];
    u.seen = step;
    u.rho = action.rho;
    u.delta = action.delta;
    const bool locked = u.until >= step;
    const bool warm = u.count > 0 && u.count >= config_.warmup;
    if (action.reason == Reason::kNonFinite) {
      action.kind = Kind::kSkip;
      action.scale = 0;
      action.level = locked ? u.level : 0;
      action.until = locked ? u.until : step;
    } else if (action.reason != Reason::kNone) {
      action.kind = action.rho > config_.tau ? Kind::kClip : Kind::kRecover;
      // rho > tau: at most 1. Not tau / rho, as rho may be Inf.
      if (action.kind == Kind::kClip) action.scale = config_.tau * u.mean / norms[i];
    }
    if (action.reason != Reason::kNone && !locked && warm) {
      at_risk_.push_back(action);
    } else if (action.kind == Kind::kSkip) {
      actions_.push_back(action);
    }
    if (action.reason != Reason::kNonFinite) remember(units[i], norms[i]);
  }

  const std::size_t busy = recovering(step);
  std::sort(at_risk_.begin(), at_risk_.end(),
            [this](const Action& a, const Action& b) { return before(a, b); });
  const std::size_t room = config_.max_ops > busy ? config_.max_ops - busy : 0;
  const std::size_t granted = std::min(room, at_risk_.size());
  for (std::size_t i = 0; i < at_risk_.size(); ++i) {
    Action& action = at_risk_[i];
    if (i < granted) {
      grant(action);
    } else {
      action.until = step;
      refused_.push_back(action);
    }
    if (i < granted || action.kind == Kind::kSkip) actions_.push_back(action);
  }
  // Under recovery, and not acted on above.
  ++calls_;
  for (const Action& action : actions_) marks_[action.unit] = calls_;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& u = units_[i];
    if (used_[i] == 0 || u.until < step || marks_[i] == calls_) continue;
    actions_.push_back(
        {static_cast<std::uint32_t>(i), Kind::kRecover, u.level, u.reason, 1, u.until, u.rho, u.delta});
  }
  std::sort(actions_.begin(), actions_.end(), [](const Action& a, const Action& b) { return a.unit < b.unit; });
}

std::uint32_t Controller::level(std::uint32_t unit) const {
  const Unit& u = units_[require(unit)];
  return u.until > step_ ? u.level : 0;
}

std::size_t Controller::recovering(std::int64_t step) const noexcept {
  std::size_t n = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) n += used_[i] != 0 && units_[i].until >= step ? 1 : 0;
  return n;
}

}  // namespace gcomm::gnmr
