#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/schedule/schedule.h"
#include "model/units.h"
#include "sim/planner/placed_problem.h"

namespace sluice::sim {

// A placement that the search may choose.
struct AutoPlacement {
  std::string name;  // "linear", "looped 2", "v"
  PlacedProblem problem;
  // Schedules of this placement to start from, each with its name.
  std::vector<std::pair<std::string, Schedule>> families;
  // By rank: the limit for the lower bound, where the search uses a smaller one; else empty.
  std::vector<std::int64_t> limit_of_bound = {};
};

// Returns the simulated makespan of a schedule, or nothing if it does not fit in memory.
using ScheduleJudge = std::function<std::optional<Duration>(const Schedule& schedule, std::size_t placement)>;

struct AutoOptions {
  double seconds = 10;  // time limit of the search, which ends earlier after long without improvement
  // Limit of the orders timed besides one per placement. Equal seeds and limits give equal results, unless the time
  // limit is reached.
  std::int64_t evaluations = std::numeric_limits<std::int64_t>::max();
  unsigned seed = 1;
  const std::atomic<bool>* stop = nullptr;  // ends the search with the best result so far
  std::function<void(double seconds, Duration best)> progress{};
};

enum class AutoEnd : std::uint8_t { bound, no_improvement, evaluations, time, interrupt };
std::string_view name_of(AutoEnd end);

// What is proven of schedules that repeat every microbatch, over all placements. Other schedules may be faster.
struct PeriodicBounds {
  Duration period_bound{};    // no time per microbatch is smaller
  Duration period{};          // the smallest one found; 0: none
  Duration makespan_bound{};  // if each op starts one period after the same op of the microbatch before; 0: not known
};

struct AutoResult {
  Schedule schedule;  // that of a family if no faster one was found
  Duration makespan{};
  Duration lower_bound{};  // over all schedules with one of the placements, under their limits
  std::string placement;
  std::optional<PeriodicBounds> periodic;  // nothing if a placement has costs or limits that are not modeled
  std::string found_by;                    // "list scheduling", "periodic schedule", "search", or a family
  std::string best_family;                 // the fastest one within the limits; empty if there is none
  Duration best_family_makespan{};
  Duration first_makespan{};  // of the first result, before search
  double first_seconds = 0;
  double seconds = 0;
  std::int64_t evaluations = 0;  // number of orders timed
  AutoEnd ended_by = AutoEnd::bound;

  double gap() const {
    return lower_bound.count() > 0
               ? static_cast<double>((makespan - lower_bound).count()) / static_cast<double>(lower_bound.count())
               : 0;
  }
};

// The schedules of all families of the registry with `problem`'s placement, for its microbatches and slices; without
// those that come after `stop` returns true.
std::vector<std::pair<std::string, Schedule>> families_of(
    const PlacedProblem& problem, const std::function<bool()>& stop = [] { return false; });

// Searches for the fastest schedule. Starts from the families, from list scheduling with many rules and from schedules
// with the least period; improves the most promising ones (OrderSearch) until a limit or the lower bound is reached.
// `judge` selects among the best of them; by default it is the simulator with the problem's own prices and limits.
// Throws InputError as `check`, DoesNotFit if no placement has a schedule within the limits.
AutoResult auto_schedule(std::vector<AutoPlacement> placements, const AutoOptions& options = {},
                         const ScheduleJudge& judge = {});

}  // namespace sluice::sim
