#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Tables of Qi et al. 2023 (arXiv:2401.10241). Each also uses the other one if it is among the CSV files in the same
// folder.

// Tables 5 and 6 (pp, num_microbatches, t_f_ms, t_b_ms, t_w_ms, t_comm_ms, bubble_*): bubble rates of each schedule
// with the profiled times, rounded to the four published digits. Interleaved 1F1B twice: as published, and waiting for
// every microbatch. Skips rates that depend on sizes of a model which the other table does not have.
TableScore score_zero_bubble_bubbles(const CsvTable& table);

// Table 4 (layers, heads, hidden, seq, pp, micro_batch, num_microbatches, schedule, derived_iter_ms): iteration times
// from the profiled times, scaled by one factor per model, which is fitted to the model's other rows. The times of a
// model without a profile are interpolated between models with one, by size. The only row of a model is skipped.
TableScore score_zero_bubble_throughput(const CsvTable& table);

}  // namespace sluice::bench::accuracy
