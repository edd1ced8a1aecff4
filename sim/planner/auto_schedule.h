#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
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
  // By rank, what the bound may count on, where the search keeps to less; else empty.
  std::vector<std::int64_t> limit_of_bound = {};
};

// What a judge says of a schedule: its makespan by the simulator; none if it does not keep within memory.
using ScheduleJudge = std::function<std::optional<Duration>(const Schedule& schedule, std::size_t placement)>;

struct AutoOptions {
  double seconds = 10;  // of search, unless long nothing better was found; the first answer is always given
  std::int64_t moves = std::numeric_limits<std::int64_t>::max();  // tried in all; same seed and moves, same answer
  unsigned seed = 1;
  std::function<void(double seconds, Duration best)> progress{};
};

struct AutoResult {
  Schedule schedule;  // a family's own where nothing was faster
  Duration makespan{};
  Duration lower_bound{};  // of every schedule with one of the placements, under their limits
  std::string placement;
  std::string found_by;     // "list scheduling", "search", or a family
  std::string best_family;  // that keeps the limits; empty if none does
  Duration best_family_makespan{};
  Duration first_makespan{};  // of the first answer, before search
  double first_seconds = 0;
  double seconds = 0;
  std::int64_t evaluations = 0;  // orders timed

  double gap() const {
    return lower_bound.count() > 0
               ? static_cast<double>((makespan - lower_bound).count()) / static_cast<double>(lower_bound.count())
               : 0;
  }
};

// The families of the registry that have `problem`'s placement, for its microbatches and slices.
std::vector<std::pair<std::string, Schedule>> families_of(const PlacedProblem& problem);

// A schedule as fast as can be found. Starts are the families and list scheduling under many rules; the most promising
// are searched (OrderSearch) until the time is up, or the bound is met. `judge` decides among the best of them; without
// one it is the simulator with the problem's own prices, under its limits.
// Throws InputError as `check`, DoesNotFit if no placement has a schedule within the limits.
AutoResult auto_schedule(std::vector<AutoPlacement> placements, const AutoOptions& options = {},
                         const ScheduleJudge& judge = {});

}  // namespace sluice::sim
