#pragma once

#include <string>
#include <vector>

#include "traces/measured/measured_run.h"
#include "traces/measured/named_ops.h"
#include "traces/profile/gpu_trace.h"

namespace sluice::traces {

struct MeasuredReadOptions {
  const NameMap* names = nullptr;  // of the ops in Chrome traces; null: those of ByteDance's timelines
  // Not null: receives the GPUs of traces of PyTorch's profiler that have kernels but no ops of a pipeline, in which
  // case the run is empty.
  std::vector<GpuTrace>* profile = nullptr;
  bool kernels = false;  // with `profile`: also where there are ops of a pipeline
};

// Reads measured steps from files (trace_files): a folder of Primus's pipeline logs; a Chrome trace whose ops have the
// names of ByteDance's timelines or of a name map, with all workers in one file or one file per rank; or a trace that
// read_trace_run reads, Sluice's own or of PyTorch's pipelining, of which it takes one step.
// Throws InputError "file: ...".
MeasuredRun read_measured_run(const std::vector<std::string>& paths, const MeasuredReadOptions& options = {});

// Reads a timeline of ByteDance from an opened file.
MeasuredRun read_bytedance_timeline(TraceSource& source);

}  // namespace sluice::traces
