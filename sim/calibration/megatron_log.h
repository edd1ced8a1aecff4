#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/scenario/scenario.h"

namespace sluice::sim {

// A value that a log prints, such as tensor_model_parallel_size.
struct LoggedValue {
  std::string name;
  std::string value;
  std::int64_t line = 0;  // from 1
};

// The log of a Megatron-LM run.
struct MegatronLog {
  std::string source;
  std::vector<double> seconds;              // per iteration
  std::vector<LoggedValue> global_batches;  // of iterations that print theirs; empty values: the others
  std::vector<LoggedValue> arguments;
};

// Reads lines that contain "elapsed time per iteration (ms): 1234.5", followed by "|" or the end of the line, the
// global batch size in the same line, and the arguments that Megatron-LM prints at the start ("  seq_length .......
// 2048"). Throws InputError naming file and line if there is no iteration, or a number is invalid.
MegatronLog parse_megatron_log(std::string_view text, const std::string& source);
MegatronLog read_megatron_log(const std::string& path);

// Throws InputError naming file, line and argument if the log was recorded with other sizes than those of the scenario:
// arguments, or the global batch of the iterations after the first `skip`.
void check_arguments(const MegatronLog& log, const Scenario& scenario, int skip);

}  // namespace sluice::sim
