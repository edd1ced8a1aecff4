#pragma once

#include <map>
#include <string>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Runs of NVIDIA's DGXC benchmarks, of NeMo's performance summary of 2024 and of Megatron-Bridge's, in groups of one
// GPU type, precision, and models with or without experts.
TableScore score_nvidia(const CsvTable& table);

// Adds the runs to `rows`: by group, a table that `sluice calibrate` reads, with one column for each part of a
// scenario.
void add_rows(const CsvTable& table, std::map<std::string, std::string>& rows);

// Returns, for every distinct configuration, by how much it is slower, in prediction, than the best of all that
// Megatron-LM has for its GPUs and batch, and the rank of its sizes (tp, cp, pp, ep, etp, microbatch) among those of
// the plan; with medians by group.
std::string agreement_text(const CsvTable& table);

}  // namespace sluice::bench::accuracy
