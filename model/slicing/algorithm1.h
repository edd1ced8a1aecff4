#pragma once

#include "model/slicing/terapipe.h"

namespace sluice::model {

// Algorithm 1 of Li et al. 2021 (TeraPipe) as printed, with the enumeration of t_max of its section 3.3: t_max takes
// all values of t_fwd from small to large, each at least `epsilon` above the previous one, until K t_max exceeds the
// best latency found; for each, a dynamic program runs over all prefixes and all lengths of their last slice. With an
// epsilon of 0 it is exact for one sweep. It is the baseline that best_slices is compared with. With a backward it runs
// on f + x, as in the paper; the latency is that of pipeline_latency all the same. `lower_bound` holds for every cut:
// between two tried values of t_max it takes the sum of the larger and the maximum of the smaller. Has no limits on the
// number of slices. Throws InputError like check_problem.
SlicePlan algorithm1_slices(const SlicingProblem& problem, Duration epsilon);

}  // namespace sluice::model
