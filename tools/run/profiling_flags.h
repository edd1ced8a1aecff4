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

// The flags of commands that measure a profile on this machine.
struct ProfilingFlags {
  std::vector<std::int64_t> tokens;    // --tokens; empty: the grid of the sequence length
  std::vector<std::int64_t> contexts;  // --contexts
  double time_budget_s = 10;

  void add_to(CLI::App& command);
};

// What to measure for these runs, which differ in their schedules alone: a grid over the sequence, and the slices that
// the schedules have. Throws InputError for microbatches of several sizes, or lengths past the sequence.
ProfilingSpec profiling_spec(std::span<const RunPlan* const> plans, const ProfilingFlags& flags, const RunPlace& place);

// Measures, with a thread for each worker of the layout, or as the processes of a launcher, where the profile is the
// first one's. Tells on the terminal how far it is.
Profile measured_profile(const ProfilingSpec& spec, const RunLayout& layout, const RunPlace& place);

}  // namespace sluice::tools
