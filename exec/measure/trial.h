#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/measure/measured_timeline.h"
#include "exec/measure/profiling.h"
#include "exec/plan/run_plan.h"
#include "exec/run/run_devices.h"
#include "exec/run/token_source.h"
#include "exec/transport/transport.h"
#include "model/cost/profile.h"

namespace sluice::exec {

// Plans to run several times each, and what to measure meanwhile.
struct TrialSpec {
  std::vector<const RunPlan*> plans;  // of one layout
  std::vector<const TokenSource*> tokens;
  int runs = 10;                             // of each plan that count
  const ProfilingSpec* profiling = nullptr;  // null: nothing is measured beside
  const RunDevices* devices = nullptr;       // of plans for devices
};

// The runs of one plan, of the first replica.
struct PlanTrials {
  std::vector<std::vector<WorkerClock>> clocks;  // by run and pipeline rank
  std::vector<std::int64_t> held_bytes;          // by pipeline rank: the most of any run, warm-ups too
  std::vector<std::int64_t> arena_bytes;
};

struct TrialReport {
  std::vector<PlanTrials> plans;
  Profile profile;  // empty if nothing was measured
};

// Told at rank 0 after each run that counts: how many there were, of all plans.
using TrialObserver = std::function<void(int runs_done)>;

// Runs the plans, each a few times after a run that does not count, and then again until all have had their runs, and
// measures the profile between runs, a share of its time at each. So whatever the machine does meanwhile, all plans and
// the profile see as much of it. The profile's own loops are all that is in it: nothing of the runs. Each time a plan
// starts with fresh weights.
//
// The part of one worker: all call it; the report is rank 0's. Throws RunFailure and what Profiler throws.
TrialReport run_trials(const TrialSpec& spec, Transport& transport, const WorkerDevice& device,
                       const TrialObserver& observer);

// With a thread for each worker. Throws the first failure, and DoesNotFit if there is not enough memory.
TrialReport run_trials_with_threads(const TrialSpec& spec, const TrialObserver& observer = {});

}  // namespace sluice::exec
