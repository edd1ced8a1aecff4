#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "import/megatron_log.h"

namespace sluice::tools {

// A timer over the iterations that have it: medians.
struct TimerSummary {
  std::string name;
  double min_s = 0;  // over ranks
  double max_s = 0;
  std::vector<double> ranks_s;  // empty: not logged by rank; 0: the rank has no such time
};

// Why the iterations of a log are slow.
struct TimerCause {
  std::string kind;      // "stage", "worker" or "iterations"
  std::string what;      // for the user
  double excess_s = 0;   // per iteration, above its reference
  std::int64_t at = -1;  // pipeline rank, rank, or number of the slowest iteration
};

// What the timers of a Megatron-LM log tell.
struct TimerAnalysis {
  std::string source;
  std::size_t iterations = 0;
  std::size_t left_out = 0;           // first iterations that took over 1.5 times the median
  std::size_t tables = 0;             // iterations with timers
  double median_s = 0;                // of an iteration
  double fast_s = 0;                  // 5 % take less
  double slow_s = 0;                  // 5 % take more
  int pipeline_ranks = 1;             // 1 also if the log does not tell
  std::vector<TimerSummary> timers;   // in the order of the log
  std::vector<double> compute_s;      // forward and backward by rank; empty: not logged by rank
  std::vector<double> idle_fraction;  // by pipeline rank: the part of forward-backward without compute; likewise
  std::vector<TimerCause> causes;     // most time first
  std::vector<std::string> notes;
};

// Analyses a log. Pipeline ranks are those of Megatron-LM's order of ranks, by the arguments that the log prints.
// Throws InputError naming the log if no iteration has timers.
TimerAnalysis analyse_timers(const MegatronLog& log, bool all_steps);

std::string timers_text(const TimerAnalysis& analysis, std::size_t top);
// sluice.timers/1
nlohmann::ordered_json timers_document(const TimerAnalysis& analysis);

}  // namespace sluice::tools
