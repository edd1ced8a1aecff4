#pragma once

#include <cstdint>
#include <vector>

#include "model/cost/analytic.h"
#include "model/cost/kernel_times.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// A GEMM or attention shape, and its executions.
struct KernelUse {
  KernelShape shape;
  std::int64_t count = 0;  // over all ops of all pipeline ranks
  double seconds = 0;      // of one execution
  bool measured = false;   // `seconds` is a measured time
};

// The compute kernels (without collectives and optimizer steps) of a schedule.
struct KernelUses {
  std::vector<KernelUse> shapes;  // distinct, in ascending order
  std::int64_t kernels = 0;       // also memory-bound ones
  std::int64_t measured_kernels = 0;
  double compute_s = 0;
  double measured_s = 0;

  // The shapes without a measurement, from the most to the least total time.
  std::vector<KernelUse> not_measured() const;
};
KernelUses kernel_uses(const AnalyticCost& cost, const Schedule& schedule);

}  // namespace sluice::model
