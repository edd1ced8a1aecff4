#pragma once

#include <functional>

#include "tests/kernels/training_run.h"

namespace sluice::test {

// Runs a case as `run` does, on devices of make_test_device, one per tensor-parallel rank. training.precision must be a
// 16-bit type, to which weights are rounded. Results are comparable with those of `run` with rounded weights.
// `inspect` is called with each device at the end.
TrainingResult run_on_devices(const TrainingCase& training, const Matrices& weights,
                              const std::function<void(Device&)>& inspect = {});

Matrices rounded(Precision precision, const Matrices& weights);

}  // namespace sluice::test
