#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "traces/measured/measured_run.h"
#include "traces/replay/replay.h"

namespace sluice::traces {

// When a pipeline receive may start.
enum class ReceiveRule : std::uint8_t {
  // After the previous pass of its kind on its rank; the first receive of gradients also after the second last forward
  // before it. The rule of StragglerAnalysis (Lin et al., OSDI 2025), for its figures.
  early,
  // After the last pass that had ended when it started.
  observed,
};

// The dependencies between the ops of one step on all workers. Positions are those of `ops`.
//
// Passes of a worker run in the order of their starts, transfers of a link and kind likewise (by the observed rule,
// unless they overlapped). A pass follows its receive, and a receive or a pass without one follows the pass of the
// neighbouring stage; sends follow their pass. The parameter gather precedes the first forward of its chunk. After the
// last pass follow, where they exist, garbage collection, the reductions, clipping and the optimizer, in this order;
// gradient scatters follow the last backward of their chunk if separate reductions show that they overlap with passes.
struct StepGraph : ReplayGraph {
  std::vector<const MeasuredOp*> ops;  // by position

  std::size_t size() const { return ops.size(); }
};

// Builds the graph of a step. Throws InputError "step N: ..." if ops that belong together are missing, or if their
// orders contradict each other. `run` must outlive the graph.
StepGraph step_graph(const MeasuredRun& run, int step, ReceiveRule rule);

// Leaves out the steps whose graph cannot be built by the observed rule, with a note each. Throws InputError
// "source: ..." if none is left.
void drop_steps_without_graph(MeasuredRun& run, const std::string& source);

}  // namespace sluice::traces
