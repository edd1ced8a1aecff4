#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "exec/measure/measured_timeline.h"
#include "exec/measure/profiling.h"
#include "exec/plan/run_plan.h"
#include "exec/run/core_wait.h"
#include "exec/run/run_devices.h"
#include "exec/run/token_source.h"
#include "exec/run/watched.h"
#include "exec/transport/transport.h"
#include "model/cost/profile.h"

namespace sluice::exec {

// Plans to run several times each, and what to measure in between.
struct TrialSpec {
  std::vector<const RunPlan*> plans;  // with equal layouts
  std::vector<const TokenSource*> tokens;
  int runs = 10;  // per plan that count, without warm-up
  // A run counts if no rank waited for a core for more than this fraction of it; others are repeated, up to kMostRuns
  // times `runs` in all. On devices all runs count.
  double most_wait = std::numeric_limits<double>::infinity();
  static constexpr int kMostRuns = 4;
  const ProfilingSpec* profiling = nullptr;  // null: no profile
  const RunDevices* devices = nullptr;       // for plans for devices
};

// The runs of one plan, of the first replica.
struct PlanTrials {
  std::vector<std::vector<WorkerClock>> clocks;     // by run that counts and pipeline rank
  std::vector<std::vector<WorkerClock>> disturbed;  // of the other runs
  std::int64_t longest_wait_ns = 0;                 // of a rank for a core, in a run
  std::int64_t switches = 0;                        // involuntary, of all ranks in all runs
  std::vector<std::int64_t> held_bytes;             // by pipeline rank: maximum over all runs, including warm-up
  std::vector<std::int64_t> arena_bytes;
};

struct TrialReport {
  std::vector<PlanTrials> plans;
  Profile profile;                 // empty if not measured
  bool profile_disturbed = false;  // some times are of calls in which a rank waited for a core
};

// Called on rank 0 after each run that counts, with the number of runs of all plans so far.
using TrialObserver = std::function<void(int runs_done)>;

// Runs the plans in turn, each several times after a warm-up run, until all have had their runs, and measures a
// fraction of the profile after each run. So disturbances of the machine affect all plans and the profile alike. The
// profile does not use the times of the runs. A plan begins with fresh weights each time.
//
// Runs as one process of many; the report is filled on rank 0. Throws RunFailure and what Profiler throws.
TrialReport run_trials_as_process(const TrialSpec& spec, Transport& transport, const WorkerDevice& device,
                                  const TrialObserver& observer, const Supervision& supervision = {});

// Runs with one thread per worker. Throws the first failure, and DoesNotFit if there is not enough memory.
TrialReport run_trials_with_threads(const TrialSpec& spec, const TrialObserver& observer = {},
                                    const Supervision& supervision = {});

}  // namespace sluice::exec
