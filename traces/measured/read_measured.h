#pragma once

#include <string>
#include <vector>

#include "traces/measured/measured_run.h"
#include "traces/measured/named_ops.h"

namespace sluice::traces {

struct MeasuredReadOptions {
  const NameMap* names = nullptr;  // of the ops in Chrome traces; null: those of ByteDance's timelines
};

// Reads measured steps from files (trace_files): a folder of Primus's pipeline logs; a Chrome trace whose ops have the
// names of ByteDance's timelines or of a name map, with all workers in one file or one file per rank; or a trace that
// read_trace_run reads, Sluice's own or of PyTorch's pipelining, of which it takes one step.
// Throws InputError "file: ...".
MeasuredRun read_measured_run(const std::vector<std::string>& paths, const MeasuredReadOptions& options = {});

// Reads a timeline of ByteDance from an opened file.
MeasuredRun read_bytedance_timeline(TraceSource& source);

}  // namespace sluice::traces
