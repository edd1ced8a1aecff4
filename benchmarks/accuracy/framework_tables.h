#pragma once

#include <string>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Runs of nanotron with all configurations of a model on a number of GPUs (Ultra-Scale Playbook, Hugging Face 2025),
// including those that failed.
TableScore score_ultrascale(const CsvTable& table);

// Runs of NVIDIA's DGXC benchmarks (NeMo), those on H100 in BF16.
TableScore score_dgxc(const CsvTable& table);

// Returns a table of the same runs: by how much the published configuration is slower, in prediction, than the best of
// all that Megatron-LM has for its GPUs and batch.
std::string agreement_text(const CsvTable& table);

}  // namespace sluice::bench::accuracy
