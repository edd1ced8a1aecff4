#pragma once

#include "tests/kernels/training_run.h"

namespace sluice::test {

// As `run`, on devices of make_test_device, one for each tensor-parallel rank: training.precision is one of 16 bits.
// Weights are rounded to it. All that the result has is comparable with what `run` says of rounded weights.
TrainingResult run_on_devices(const TrainingCase& training, const Matrices& weights);

Matrices rounded(Precision precision, const Matrices& weights);

}  // namespace sluice::test
