#pragma once

#include "model/slicing/terapipe.h"

namespace sluice::model {

// Algorithm 1 of Li et al. 2021 (TeraPipe) as printed, with the enumeration of t_max of its section 3.3: t_max goes
// over all values of t_fwd from small to large, each at least `epsilon` above the last one tried, until K t_max passes
// the best latency found; each time a dynamic program over all prefixes and all lengths of their last slice. With an
// epsilon of 0 it is exact for one sweep. It is the baseline that best_slices is compared with.
// With a backward it is run on f + x, as the paper does; the latency is that of pipeline_latency all the same.
// `lower_bound` holds for every cut: it counts what lies between two t_max tried with the sum of the larger and the
// maximum of the smaller. Takes no limits on the number of slices. Throws InputError as check_problem does.
SlicePlan algorithm1_slices(const SlicingProblem& problem, Duration epsilon);

}  // namespace sluice::model
