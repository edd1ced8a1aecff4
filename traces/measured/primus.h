#pragma once

#include <string>
#include <vector>

#include "traces/measured/measured_run.h"

namespace sluice::traces {

// Whether these files are a folder of AMD Primus's pipeline logs: pp_rank_N.json and, optionally, config.json.
bool is_primus_log(const std::vector<std::string>& paths);

// Reads them: per rank and iteration the starts and ends of forwards and backwards in ms from the iteration's start on
// that rank, in order of execution, and the peak memory in GB. With `vp_size` of config.json above 1, the k-th forward
// of a rank has the chunk and microbatch that interleaved 1F1B gives it. Throws InputError "file: /pointer: ...".
MeasuredRun read_primus_log(const std::vector<std::string>& paths);

}  // namespace sluice::traces
