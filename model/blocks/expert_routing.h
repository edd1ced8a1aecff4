#pragma once

#include "model/workload/transformer.h"

namespace sluice::model {

// Returns the expected number of different parts on which the experts of a token lie, if consecutive experts are
// divided into `parts` equal parts (ranks, or nodes), under routing that chooses groups and then experts of them
// uniformly.
double expected_parts(const Experts& experts, int parts);

}  // namespace sluice::model
