#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/slicing/chunk_times.h"
#include "model/slicing/joint.h"
#include "model/slicing/terapipe.h"
#include "sim/planner/slices_for_schedule.h"
#include "tools/command/document.h"

namespace sluice::tools {

// A cut of one sequence through a pipeline, and the times of other cuts.
struct CutReport {
  std::string method;  // "terapipe", "algorithm1", "balanced"
  std::int64_t tokens = 0;
  std::int64_t granularity = 1;
  int cells = 1;
  int sequences = 1;
  bool backward = false;
  SlicePlan plan;
  bool proven = false;  // the plan's lower bound holds for every cut
  // Where it is not proven, `plan.lower_bound` is the time of the fastest cut at this coarser granularity.
  std::int64_t best_granularity = 0;
  Duration even{};             // time of the same number of even slices
  std::int64_t best_even = 1;  // number of even slices with the least time
  Duration best_even_time{};
  Duration whole{};
  Duration hop_latency{};              // of all transfers in one direction, not included in the times
  std::string assumed;                 // assumed_times_line
  std::optional<ChunkTimes> chunks;    // that the times are from
  std::optional<double> flops_spread;  // balanced slices: largest over smallest FLOPs, minus 1
};
std::string cut_table(const CutReport& report);
OrderedJson cut_json(const CutReport& report);

// A joint cut of batch and sequence, and the times of two simple cuts.
struct JointReport {
  CutReport frame;
  JointPlan plan;
  Duration together{};  // the whole batch as one part, with the best slices
  Duration apart{};     // one sequence per part, with the best slices
};
std::string joint_table(const JointReport& report);
OrderedJson joint_json(const JointReport& report);

// The cut for a schedule.
std::string schedule_table(const SlicesRequest& request, const ScheduleSlices& found);
OrderedJson schedule_json(const SlicesRequest& request, const ScheduleSlices& found);

// Returns lengths with repetitions collapsed: "4x120 6x112 64".
std::string run_lengths(std::span<const std::int64_t> lengths);

// Returns the content of --output: a scenario's "schedule" if `json`, otherwise comma-separated lengths.
std::string lengths_text(std::span<const std::int64_t> lengths, const std::string& schedule, bool json);

}  // namespace sluice::tools
