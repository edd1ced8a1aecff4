#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Korthikanti et al. 2022, figure 1: bytes of parameters with optimizer state, and of activations.
TableScore score_korthikanti_memory(const CsvTable& table);
// Qi et al. 2024 (zero bubble), table 4: the highest peak of all ranks. ZB-1p and ZB-2p are built as in the paper, with
// limits of p and 2p microbatches per rank.
TableScore score_zero_bubble_memory(const CsvTable& table);

}  // namespace sluice::bench::accuracy
