#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/memory.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "traces/rows/part_rows.h"

namespace sluice::traces {

// A run to draw in figures and reports. Refers to its parts, which must outlive it.
struct DrawnRun {
  const OpGraph* graph = nullptr;
  const Timeline* timeline = nullptr;
  const Metrics* metrics = nullptr;
  std::span<const RankMemory> memory;  // by rank, with samples; empty = draw no memory
  std::string title;                   // "zb-v, 4 ranks, 8 microbatches"
  std::vector<PartRow> parts;          // of layers with experts (part_rows): dispatch and combine are drawn as a lane
  std::optional<std::int64_t> capacity_bytes;  // memory of a device available to tensors
};

struct FigureOptions {
  double width = 720;      // px, at least 240; 1 px is 1/96 inch on paper
  int max_ranks = 32;      // rows per run; of more ranks the first and the last are shown; at least 2
  bool transfers = false;  // draw transfers and collectives
  bool memory = true;      // draw the memory of each rank over time
  // Replaces the title of a run, or stands above those of several. Empty: no titles and results are drawn.
  std::optional<std::string> title;
};

inline constexpr std::size_t kMostFigureRuns = 26;

// Returns a figure for a paper, as SVG. Each run has a title with its results, one row per rank, and the memory of each
// rank over time in GiB or, without bytes, its number of microbatches in flight; the rank with the highest peak is
// bold, the capacity is dashed. Several runs are drawn one above the other with a common time axis, and a common memory
// scale if they have the same unit.
//
// Ops are labelled with kind, microbatch and slice (B3, B3b) if that fits nearly everywhere, else with microbatch and
// slice, else with the microbatch; without the kind in the label, kinds are hatched so that they differ in more than
// colour. Chunks, or slices if ranks have one chunk, are shades from dark to light. The two ops of a joint block are
// drawn one above the other. Dispatch and combine of experts are a lane below the ops of their rank. Adjacent ops
// of one colour narrower than 5 px are drawn as one. Sequences of many ops narrower than half a px are drawn as columns
// of one px in which the height of each colour is its fraction of time; a note in the figure explains them. Throws
// InputError unless there are 1 to kMostFigureRuns runs and the width is from 240 to 20000 px.
std::string svg_figure(std::span<const DrawnRun> runs, const FigureOptions& options = {});

}  // namespace sluice::traces
