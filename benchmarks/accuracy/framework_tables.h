#pragma once

#include <string>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Runs of nanotron with all configurations of a model on a number of GPUs (Ultra-Scale Playbook, Hugging Face 2025),
// including those that failed.
TableScore score_ultrascale(const CsvTable& table);

}  // namespace sluice::bench::accuracy
