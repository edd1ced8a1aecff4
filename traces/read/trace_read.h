#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

struct TraceReadOptions {
  // Which iteration, where there are several: of Kineto the number of its ProfilerStep, or without such ranges, and of
  // our own traces, its place from 0. None: the last whole one. A trace of ours with one iteration has no choice.
  std::optional<std::int64_t> step;
};

// A run that was read, and what had to be decided to read it, in words.
struct TraceRun {
  RunRows run;
  std::vector<std::string> notes;
};

// The files that a word of a command line names: those of a folder that end in .json or .json.gz, in the order of the
// numbers in their names; a file; or several, separated by commas. Throws InputError naming what is not there.
std::vector<std::string> trace_files(const std::string& word);

// Whether a file is a trace: a JSON object with `traceEvents`. Reads no further than that. Throws InputError.
bool is_trace_file(const std::string& path);

// Reads the run of one trace of ours (sluice.trace/1), simulated or measured; or of traces that PyTorch's profiler
// (Kineto) wrote, a file for each rank of one pipeline.
//
// Of ours: ranks are processes in the order of the file. Memory is known where it has counters, its peak without what
// was there for an instant alone.
//
// Of Kineto: `PP:` ranges of torch.distributed.pipelining, PP:2F0, PP:1I3, PP:0W2, PP:3B1, PP:(0F1;3B0)OVERLAP_F_B,
// those of the GPU (gpu_user_annotation) on the stream that has most of them, else those of the CPU (user_annotation).
// Sends and receives (PP:1SEND_F0) become transfers where both are there on the GPU; PP:0REDUCE_GRAD a gradient reduce;
// Optimizer.step an optimizer step of the rank's first stage. Ranks are numbered by `rank` of `distributedInfo` (see
// TraceHead), in ascending order, or as the files come. Clocks are aligned (align_clocks).
//
// Idle time by cause is what the trace says of it (--trace-idle), or follows from its ops (idle_of_rows).
//
// Throws InputError "file: event N: ..." for what is no such trace, where ranks or stages are missing or there twice,
// or where all times together pass 126 years.
TraceRun read_trace_run(const std::vector<std::string>& paths, const TraceReadOptions& options = {});

// The same of the text of one file; `source` names it in errors.
TraceRun read_trace_run_text(std::string_view text, const std::string& source, const TraceReadOptions& options = {});

}  // namespace sluice::traces
