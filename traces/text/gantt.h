#pragma once

#include <string>

#include "model/graph/op_graph.h"
#include "model/timeline/metrics.h"
#include "model/timeline/timeline.h"

namespace sluice::traces {

enum class TextColour { none, ansi256, truecolor };

struct GanttOptions {
  int width = 100;     // most columns between the bars; at least 10
  int max_ranks = 64;  // rows; of more ranks the first and the last are shown
  TextColour colour = TextColour::none;
};

// The compute lanes as text, UTF-8, each line ended: a row for each rank, its busy share of the makespan and the most
// microbatches it holds.
//
//     rank 0 │F0F1F2F3············B0──F4B1──F5B2──F6B3──F7B4──··B5──··B6──··B7──│ busy 72.7 %  4 in flight
//
// An op is its letter (F, B, I, W; R recomputation; O optimizer step), its microbatch where that fits, and ─ to its
// end; · is idle. A slice is told by a letter behind the microbatch, F0a F0b, where that fits everywhere. A joint block
// is F3&B1, shorter F3B1, F&B, FB or &.
//
// Where all times are multiples of a unit of which the makespan has few enough, every unit is the same number of
// columns, the fewest that let each op carry its label: slice, else microbatch, else the microbatch modulo 10, else the
// letter alone (shorter ops then have the letter alone, longer ones the microbatch modulo 10). Otherwise each column
// shows what runs at its middle; ops that no middle meets are not seen. A last line says so, and where numbers are
// modulo 10.
std::string text_gantt(const OpGraph& graph, const Timeline& timeline, const Metrics& metrics,
                       const GanttOptions& options = {});

}  // namespace sluice::traces
