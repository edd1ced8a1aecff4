#pragma once

#include <span>
#include <string>

#include "traces/drawn_run.h"

namespace sluice {

struct FigureOptions {
  double width = 960;  // px
  int max_ranks = 32;  // rows a run; of more ranks the first and the last are shown
};

// A figure for a paper, as SVG: for each run a row a rank with its ops in the palette, labelled with kind, microbatch
// and slice (m.s) as far as that fits, chunks told apart by lighter shades; below it what each rank holds over time, in
// bytes or, without bytes, in microbatches in flight, with the most loaded rank drawn bold and the capacity dashed. Two
// runs stand one above the other on one time axis. A joint block is drawn as its two halves, one above the other.
// Where ops are narrower than half a pixel, each half pixel shows what takes most of its time; a line says so.
// Throws InputError unless there are one or two runs.
std::string svg_figure(std::span<const DrawnRun> runs, const FigureOptions& options = {});

}  // namespace sluice
