#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::test {

// How a run looks to PyTorch's profiler.
struct KinetoStyle {
  int iterations = 1;
  std::int64_t first_step = 2;       // number of the first ProfilerStep
  bool gpu = true;                   // else ranges of the CPU alone
  bool steps = true;                 // with ProfilerStep ranges
  bool transfers = true;             // with sends and receives
  bool distributed_info = true;      // the file says its rank
  std::int64_t world_rank_step = 1;  // world ranks are 0, 1, 2 times this
  std::vector<Duration> clocks;      // by rank: how much its clock is ahead; empty: none
  int cut_front = 0;                 // so many ops of each rank came before the recording began
  int cut_back = 0;                  // so many after it had ended
  Duration gap{1'000'000};           // between iterations
};

// The file of one rank as libkineto's ChromeTraceLogger (output_json.cpp) writes it: header with distributedInfo and
// baseTimeNanoseconds, metadata, ranges as torch.distributed.pipelining names them (schedules.py,
// _get_profiler_function_name: "PP:" and the action), on the CPU (user_annotation, its launches) and on the GPU
// (gpu_user_annotation, 1 ns early and 1 ns late), kernels, "Spans", and the end of the window. Optimizer steps and
// collectives of the run are left out.
std::string kineto_text(const RunRows& run, int rank, const KinetoStyle& style = {});

// Writes all ranks into `folder` (which is there) as rank0.json, rank1.json, ...; returns the paths.
std::vector<std::string> write_kineto_files(const std::string& folder, const RunRows& run,
                                            const KinetoStyle& style = {});

}  // namespace sluice::test
