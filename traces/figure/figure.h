#pragma once

#include <span>
#include <string>

#include "traces/figure/drawn_run.h"

namespace sluice::traces {

struct FigureOptions {
  double width = 720;      // px, at least 240; 1 px is 1/96 inch on paper
  int max_ranks = 32;      // rows a run; of more ranks the first and the last are shown; at least 2
  bool transfers = false;  // draw what moves between ranks
};

// A figure for a paper, as SVG: for each run a row a rank with its ops in the palette; below it what each rank holds
// over time, in GiB or, without bytes, in microbatches in flight, with the rank that holds most drawn bold and the
// capacity dashed. Two runs stand one above the other on one time axis, and one scale of what they hold where they have
// the same unit.
//
// An op carries kind, microbatch and slice (B3, B3b) where that fits nearly everywhere, else the microbatch and slice,
// else the microbatch, and then kinds are hatched, so that colour is never all there is. Chunks, or the slices of ranks
// with one, are shades from dark to light. A joint block is its two halves, one above the other. Where many ops
// narrower than half a px follow each other, columns of one px show the share of each kind as a height; a line says so.
// Throws InputError unless there are one or two runs and the width is in its range.
std::string svg_figure(std::span<const DrawnRun> runs, const FigureOptions& options = {});

}  // namespace sluice::traces
