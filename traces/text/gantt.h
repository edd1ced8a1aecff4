// Public header.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"
#include "traces/rows/part_rows.h"

namespace sluice::traces {

enum class TextColour { none, ansi256, truecolor };

struct GanttOptions {
  int width = 100;     // maximum number of columns between the bars; at least 10
  int max_ranks = 64;  // maximum number of rows; of more ranks the first and the last are shown
  TextColour colour = TextColour::none;
  std::vector<PartRow> parts;  // of the run, where it is not a GanttRun
};

// A run to draw. Refers to its parts.
struct GanttRun {
  std::string title;  // a line above it; empty: none
  const OpGraph* graph = nullptr;
  const Timeline* timeline = nullptr;
  const Metrics* metrics = nullptr;
  std::vector<PartRow> parts;  // of layers with experts (part_rows): dispatch and combine get a line below their rank
};

// Draws the compute lanes of runs, one below the other on one time axis, as UTF-8 text: one line per rank, with its
// busy fraction of the makespan and its peak number of microbatches in flight.
//
//     rank 0 │F0F1F2F3············B0──F4B1──F5B2──F6B3──F7B4──··B5──··B6──··B7──│ busy 72.7 %  4 in flight
//
// An op is drawn as its letter (F, B, I, W; R recomputation; O optimizer step), its microbatch if that fits, and ─ up
// to its end; · is idle time. Ops of odd chunks have lower-case letters, f0. Slices are letters after the microbatch,
// F0a F0b, if that fits everywhere. A joint block is F3&B1, or in less space F3B1, F&B, FB or &.
//
// Dispatch and combine of experts are drawn below their rank as D and C in a forward, d and c in a backward, with the
// fraction of them during which the rank computes.
//
// If all times are multiples of a unit and the makespan has at most `width` units, every unit has the same number of
// columns: the fewest that fit the labels of all ops with slice, else with microbatch, else with the microbatch modulo
// 10 (ops too short for that show only the letter). Otherwise each column shows the op that runs at its midpoint, and
// ops between two midpoints are not drawn. A last line reports sampling and numbers modulo 10.
std::string text_gantt(std::span<const GanttRun> runs, const GanttOptions& options = {});
std::string text_gantt(const OpGraph& graph, const Timeline& timeline, const Metrics& metrics,
                       const GanttOptions& options = {});

}  // namespace sluice::traces
