#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/slicing/joint.h"
#include "model/slicing/terapipe.h"
#include "sim/planner/slices_for_schedule.h"

namespace sluice::tools {

// A cut of one sequence through a pipeline, and what others take.
struct CutReport {
  std::string method;  // "terapipe", "algorithm1", "balanced"
  std::int64_t tokens = 0;
  std::int64_t granularity = 1;
  int cells = 1;
  int sequences = 1;
  bool backward = false;
  SlicePlan plan;
  bool proven = false;         // the plan's lower bound is one of every cut
  Duration even{};             // even slices, as many
  std::int64_t best_even = 1;  // the number of even slices that takes least
  Duration best_even_time{};
  Duration whole{};
  Duration hops{};                     // latency of all hops in one direction, not in any of the times
  std::optional<double> flops_spread;  // of balanced slices: largest over least FLOPs, less 1
};
std::string cut_table(const CutReport& report);
std::string cut_json(const CutReport& report);

// Batch and sequence cut together, and what two simple ways take.
struct JointReport {
  CutReport frame;
  JointPlan plan;
  Duration together{};  // the whole batch at once, its sequences cut as is best
  Duration apart{};     // one sequence after the other, cut as is best
};
std::string joint_table(const JointReport& report);
std::string joint_json(const JointReport& report);

// The cut for a schedule. `request` is what was asked.
std::string schedule_table(const SlicesRequest& request, const ScheduleSlices& found);
std::string schedule_json(const SlicesRequest& request, const ScheduleSlices& found);

// "4x120 6x112 64": runs of equal lengths.
std::string run_lengths(std::span<const std::int64_t> lengths);

// What --output writes: a scenario's "schedule" where `json`, or else the lengths with commas between them.
std::string lengths_text(std::span<const std::int64_t> lengths, const std::string& schedule, bool json);

}  // namespace sluice::tools
