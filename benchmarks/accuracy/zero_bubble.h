#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Tables of Qi et al. 2023 (arXiv:2401.10241). Each also reads the other one, which is looked for among the CSV files
// beside `table`.

// Tables 5 and 6 (pp, num_microbatches, t_f_ms, t_b_ms, t_w_ms, t_comm_ms, bubble_*): the profiled times through each
// schedule, rounded to the four digits that are published. Interleaved 1F1B twice: as published, and with every
// microbatch waited for. What needs the layers or heads of a model that the other table lacks is skipped.
TableScore score_zero_bubble_bubbles(const CsvTable& table);

// Table 4 (layers, heads, hidden, seq, pp, micro_batch, num_microbatches, schedule, derived_iter_ms): iteration times
// from the profiled times, with one factor on them for each model, fitted to the model's other rows. A model without a
// profile takes the times of those that have one, by its sizes. A model's only row is skipped.
TableScore score_zero_bubble_throughput(const CsvTable& table);

}  // namespace sluice::bench::accuracy
