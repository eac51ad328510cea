// GNMR: norms in, bounded actions out (docs/gnmr.md). It knows nothing of tensors or codecs. Everything is a
// function of what was observed, in float64 and in a fixed order, so controllers that see the same norms decide
// the same. Not locked: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gcomm::gnmr {

struct Config {
  double tau = 0;            // at least 1
  double tau_delta = 0;      // at least 1
  std::uint32_t window = 0;  // of the history's average, and values of rho that delta compares with
  std::uint32_t warmup = 0;  // finite observations before a unit can be at risk
  std::uint32_t max_ops = 0;
  std::uint32_t lock = 0;    // steps
  std::uint32_t levels = 0;  // wire formats in a unit's list
};

// Numbers of gcomm_gnmr_kind and gcomm_gnmr_reason.
enum class Kind : std::uint32_t { kNone = 0, kClip = 1, kSkip = 2, kRecover = 3 };
enum class Reason : std::uint32_t { kNone = 0, kRho = 1, kDelta = 2, kNonFinite = 3 };

struct Action {
  std::uint32_t unit = 0;
  Kind kind = Kind::kNone;
  std::uint32_t level = 0;
  Reason reason = Reason::kNone;
  double scale = 1;        // what the unit's gradient is multiplied by
  std::int64_t until = 0;  // the last step under recovery
  double rho = 0;
  double delta = 0;
};

// What is remembered of a unit; its last values of rho lie in a row of their own.
struct Unit {
  double mean = 0;           // of the history
  std::uint64_t count = 0;   // finite observations in it
  std::uint32_t filled = 0;  // values of rho that there are, at most window
  std::uint32_t next = 0;    // where the next one goes
  std::uint32_t level = 0;   // of the last recovery
  Reason reason = Reason::kNone;
  std::int64_t until = kNever;  // of the last recovery
  std::int64_t seen = kNever;   // the step of the last observation
  double rho = 1;               // of the last observation
  double delta = 0;

  static constexpr std::int64_t kNever = -1;
};

class Controller {
 public:
  explicit Controller(const Config& config);

  const Config& config() const noexcept { return config_; }
  // The step of the last observe(), -1 before the first.
  std::int64_t step() const noexcept { return step_; }
  void set_step(std::int64_t step);

  // A number for a name that is not in use; those of removed units are given again.
  std::uint32_t add(std::string_view name);
  void remove(std::uint32_t unit);
  std::uint32_t find(std::string_view name) const;  // throws kInvalid
  std::size_t size() const noexcept { return by_name_.size(); }
  // Units have numbers below it.
  std::size_t slots() const noexcept { return units_.size(); }
  bool in_use(std::uint32_t unit) const noexcept { return unit < used_.size() && used_[unit] != 0; }
  const std::string& name(std::uint32_t unit) const { return names_[require(unit)]; }

  const Unit& unit(std::uint32_t unit) const { return units_[require(unit)]; }
  // window values, of which the first `filled` count.
  const double* recent(std::uint32_t unit) const { return &recent_[require(unit) * config_.window]; }
  void restore(std::uint32_t unit, const Unit& values, const double* recent);

  // Norms of n different units. step: not below the last; at the same step, units not yet seen at it. Throws
  // kInvalid, changing nothing.
  void observe(const std::uint32_t* units, const double* norms, std::size_t n, std::int64_t step);
  // Of the last observe(), in the order of the units' numbers: those acted on and all under recovery;
  const std::vector<Action>& actions() const noexcept { return actions_; }
  // and those at risk for which the budget had no room, the largest rho first.
  const std::vector<Action>& refused() const noexcept { return refused_; }

  // The level at which the unit's values of the step after the last travel.
  std::uint32_t level(std::uint32_t unit) const;
  // Units under recovery at a step.
  std::size_t recovering(std::int64_t step) const noexcept;

 private:
  std::uint32_t require(std::uint32_t unit) const;
  void check(const std::uint32_t* units, const double* norms, std::size_t n, std::int64_t step);
  double recent_mean(std::uint32_t unit) const noexcept;
  void measure(std::uint32_t unit, double norm, Action& action);
  void remember(std::uint32_t unit, double norm);
  bool before(const Action& a, const Action& b) const;
  void grant(Action& action);

  const Config config_;
  std::int64_t step_ = -1;
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
  std::vector<std::string> names_;
  std::vector<std::uint8_t> used_;
  std::vector<std::uint32_t> free_;  // numbers
  std::vector<Unit> units_;
  std::vector<double> recent_;
  std::vector<std::uint64_t> marks_;  // the observe() that names the unit
  std::uint64_t calls_ = 0;
  std::vector<Action> actions_, refused_, at_risk_;
};

}  // namespace gcomm::gnmr
