#pragma once

#include <vector>

#include "benchmarks/accuracy/score.h"
#include "model/weave/part_kernels.h"
#include "model/weave/weave.h"

namespace sluice::bench::accuracy {

// A part of a traced block. Its layer is counted in the order of its pass, and times are from the start of the block.
struct TracedPart {
  PassPart part;
  int layer = 0;
  double start_s = 0;  // of its first kernel, on any stream
  double end_s = 0;    // of its last
  PartKernels kernels;

  double seconds() const { return end_s - start_s; }
};

// Reads the parts of a trace of a forward and a backward under DualPipe: a row per part and stream, with its busy time
// and its extent (first start to last end). Throws InputError that names the row.
std::vector<TracedPart> traced_parts(const CsvTable& table);

// Returns the gaps of the compute parts, without those of a layer.
StreamGaps gaps_without(const std::vector<TracedPart>& parts, int layer);

// Scores the weave `dualpipe` with the extents of the parts of a trace: the time of the whole, the number of parts that
// wait for the same part as in the trace, and the idle time of the compute lane. With the busy times of the kernels:
// the time without gaps, and with the gaps of the other layers. In the trace, a part waits for the one that ends last
// before its start.
TableScore score_dualpipe_trace(const CsvTable& table);

}  // namespace sluice::bench::accuracy
