#pragma once

#include "exec/plan/run_plan.h"
#include "exec/run/token_source.h"
#include "tests/support/one_device.h"

namespace sluice::test {

// One step of a plan with a flush and no tensor parallelism, by one thread that takes the graph's vertices in the order
// of their ids and calls the kernels: every slice has buffers of its own, nothing is reused and nothing is sent. Sums
// are taken in the order of ranks. The weights after the step, in the plan's precision.
Weights straight_line(const RunPlan& plan, const TokenSource& tokens);

}  // namespace sluice::test
