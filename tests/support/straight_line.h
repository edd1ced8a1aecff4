#pragma once

#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "tests/support/one_device.h"

namespace sluice::test {

// Returns the weights after one step of a plan with a flush and without tensor parallelism, in the plan's precision.
// One thread calls the kernels in the order of the graph's vertices: every slice has its own buffers, and nothing is
// sent. All-reduces sum in the order of the ranks.
Weights straight_line(const RunPlan& plan, const TokenSource& tokens);

}  // namespace sluice::test
