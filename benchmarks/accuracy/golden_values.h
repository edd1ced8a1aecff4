#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Predicts the peak of the allocated bytes that Megatron-LM's functional tests record, on the last rank, from the whole
// line of arguments. Rows of other models than GPT, and of reinforcement learning, are skipped.
TableScore score_golden_values(const CsvTable& table);

}  // namespace sluice::bench::accuracy
