#pragma once

#include <functional>
#include <vector>

#include "model/slicing/terapipe.h"

namespace sluice::model {

// A batch cut along both dimensions: each part passes the pipeline separately, cut into its own slices.
struct JointPlan {
  struct Part {
    int sequences = 0;
    SlicePlan plan;
  };
  std::vector<Part> parts;  // most sequences first
  Duration latency{};       // the sum of theirs
  Duration lower_bound{};
};

// Returns the best cut of `batch` sequences into b_1 + ... + b_D, with T_b the optimum of `problem_of(b)` (Li et al.
// 2021, TeraPipe, 3.4): the minimum sum of T_b, by an unbounded knapsack; exact. Throws InputError for a batch below 1,
// and like best_slices.
JointPlan best_joint_slices(int batch, const std::function<SlicingProblem(int sequences)>& problem_of);

}  // namespace sluice::model
