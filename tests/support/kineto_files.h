#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::test {

// How PyTorch's profiler records a run.
struct KinetoStyle {
  int iterations = 1;
  std::int64_t first_step = 2;       // number of the first ProfilerStep
  bool gpu = true;                   // else CPU ranges only
  bool steps = true;                 // with ProfilerStep ranges
  bool transfers = true;             // with sends and receives
  bool distributed_info = true;      // the file contains its rank
  std::int64_t world_rank_step = 1;  // world ranks are 0, 1, 2 times this
  std::vector<Duration> clocks;      // by rank: how far its clock is ahead; empty = no offsets
  int cut_front = 0;                 // number of ops per rank before the start of the recording
  int cut_back = 0;                  // number of ops per rank after its end
  Duration gap{1'000'000};           // between iterations
  bool launches = false;  // of kernels, those of a backward by another thread, as autograd does; a GPU range has
                          // only what its own thread launched
};

// Returns the file of one rank in the format of libkineto's ChromeTraceLogger (output_json.cpp): header with
// distributedInfo and baseTimeNanoseconds, metadata, ranges with the names of torch.distributed.pipelining
// (schedules.py, _get_profiler_function_name: "PP:" + action) on the CPU (user_annotation, kernel launches) and on the
// GPU (gpu_user_annotation, 1 ns longer at both ends), kernels, "Spans", and the end of the recording window. Optimizer
// steps and collectives of the run are omitted.
std::string kineto_text(const RunRows& run, int rank, const KinetoStyle& style = {});

// Writes all ranks to the existing `folder` as rank0.json, rank1.json, ... Returns the paths.
std::vector<std::string> write_kineto_files(const std::string& folder, const RunRows& run,
                                            const KinetoStyle& style = {});

}  // namespace sluice::test
