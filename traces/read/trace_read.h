#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "traces/chrome/trace_events.h"
#include "traces/rows/run_rows.h"

namespace sluice::traces {

// Returns the idle time by cause of each rank of a run that was read from a file: idle_by_cause of the graph that is
// reconstructed from the order of its ops, its placement and its collectives. If the run has no transfer between two
// ops, the second one waits for the link from the end of the first. Returns an empty list if no such graph exists
// (missing ops, steps of several batches, ops of one rank that overlap). Causes always sum to makespan - busy.
std::vector<IdleByCause> idle_of_rows(const RunRows& run);

// The maximum number of events that are kept of one file.
inline constexpr std::int64_t kMaxKeptEvents = 100'000'000;

struct TraceReadOptions {
  // The iteration to read, if there are several: for Kineto the number of its ProfilerStep; without such ranges, and
  // for Sluice traces, its index from 0. Nullopt: the last complete one. Ignored for Sluice traces with one iteration.
  std::optional<std::int64_t> step;
  // Whether idle time is derived from the ops where the trace does not have it.
  bool causes = true;
};

// A run read from files, and notes for the user on how it was read.
struct TraceRun {
  RunRows run;
  std::vector<std::string> notes;
  bool shared_cores = false;  // measured with more workers than cores
};

// Returns the files that a command-line argument names: the files of a folder that end in .json or .json.gz, in natural
// order (rank9 before rank10); a file; or several files separated by commas. Throws InputError naming a missing file.
std::vector<std::string> trace_files(const std::string& argument);

// Reads a run from one Sluice trace (sluice.trace/1), simulated or measured, or from traces of PyTorch's profiler
// (Kineto), one file per rank of one pipeline.
//
// Sluice traces: ranks are processes in file order. Memory is known if there are counters; its peak excludes
// instantaneous allocations.
//
// Kineto: reads the `PP:` ranges of torch.distributed.pipelining (PP:2F0, PP:1I3, PP:0W2, PP:3B1,
// PP:(0F1;3B0)OVERLAP_F_B): the kernels launched during those of the CPU (user_annotation), on the stream with most of
// their time, else those of the GPU (gpu_user_annotation), or else those of the CPU. Sends and receives on the GPU
// (PP:1SEND_F0) become transfers if both ends exist; PP:0REDUCE_GRAD becomes a gradient reduce; Optimizer.step an
// optimizer step of the rank's first stage. Ranks are numbered in ascending order of `rank` of `distributedInfo` (see
// TraceHead), or in file order. Clocks are aligned (align_clocks).
//
// Idle time by cause is read from the trace (--trace-idle) or derived from its ops (idle_of_rows, options.causes).
//
// Throws InputError "file: event N: ..." for an invalid trace, missing or duplicate ranks or stages, or if the sum of
// all times exceeds 126 years.
TraceRun read_trace_run(const std::vector<std::string>& paths, const TraceReadOptions& options = {});

// Reads a run from opened files or texts in memory.
TraceRun read_trace_run(std::vector<std::unique_ptr<TraceSource>> sources, const TraceReadOptions& options = {});

}  // namespace sluice::traces
