#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/measure/profiling.h"
#include "exec/plan/run_plan.h"
#include "model/cost/profile.h"
#include "tools/run/run_place.h"

namespace sluice::tools {

// The flags that select what a profile measures.
struct ProfilingFlags {
  std::vector<std::int64_t> tokens;    // --tokens; empty: profile_grid of the sequence length
  std::vector<std::int64_t> contexts;  // --contexts
  double time_budget_s = 10;

  void add_to(CLI::App& command);
};

// Returns what to measure for `plans`, which differ only in their schedules: a grid over the sequence, and the slices
// of the schedules. Throws InputError for microbatches of several sizes, or lengths beyond the sequence. `tokens` of
// the run outlive the measurement.
ProfilingSpec profiling_spec(std::span<const RunPlan* const> plans, const ProfilingFlags& flags, const RunPlace& place,
                             const TokenSource& tokens);

// Measures a profile with one thread per worker of the layout, or with the processes of a launcher; then the result is
// complete on the first process. Shows the progress on a terminal. `plan` is the one of the layout, and `supervision`
// how its workers are watched.
Profile measured_profile(const ProfilingSpec& spec, const RunPlan& plan, const RunPlace& place,
                         const Supervision& supervision);

}  // namespace sluice::tools
