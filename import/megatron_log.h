#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/scenario/scenario.h"

namespace sluice::imports {

// A value that a log prints, such as tensor_model_parallel_size.
struct LoggedValue {
  std::string name;
  std::string value;
  std::int64_t line = 0;  // from 1
};

// A timer of an iteration: its time on each rank, or the extremes over the ranks.
struct LoggedTimer {
  std::string name;  // "forward-compute"
  double min_s = 0;  // with --timing-log-option max: the maximum
  double max_s = 0;
  std::vector<double> ranks_s;  // with --timing-log-option all; 0: the rank has no such time
};

// The timers that Megatron-LM prints after an iteration, per iteration of the interval between two logged ones.
struct TimerTable {
  std::size_t iteration = 0;  // index into MegatronLog::seconds
  std::vector<LoggedTimer> timers;
};

// The log of a Megatron-LM run.
struct MegatronLog {
  std::string source;
  std::vector<double> seconds;              // per iteration
  std::vector<std::int64_t> iterations;     // their numbers, 0 where a line prints none
  std::vector<TimerTable> tables;           // of the iterations that have timers
  std::vector<LoggedValue> global_batches;  // of iterations that print theirs; empty values: the others
  std::vector<LoggedValue> arguments;
};

// Reads lines that contain "elapsed time per iteration (ms): 1234.5", followed by "|" or the end of the line, the
// global batch size in the same line, the arguments that Megatron-LM prints at the start ("  seq_length .......
// 2048"), and the timers ("forward-compute ....: (12.34, 15.67)", or a line "rank  3: 12.34" for each rank) between two
// iterations. Throws InputError naming file and line if there is no iteration, or a number is invalid.
MegatronLog parse_megatron_log(std::string_view text, const std::string& source);
MegatronLog read_megatron_log(const std::string& path);

// Throws InputError naming file, line and argument if the log was recorded with other sizes than those of the scenario:
// arguments, or the global batch of the iterations after the first `skip`.
void check_arguments(const MegatronLog& log, const Scenario& scenario, int skip);

}  // namespace sluice::imports
