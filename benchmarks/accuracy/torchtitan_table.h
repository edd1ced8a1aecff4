#pragma once

#include <map>
#include <string>

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Runs of torchtitan: iteration time and peak memory of FSDP, with tensor, pipeline and context parallelism.
TableScore score_torchtitan(const CsvTable& table);

// Adds the runs to `rows`, by framework, GPU type and precision, as add_rows of nvidia_tables.h does.
void add_torchtitan_rows(const CsvTable& table, std::map<std::string, std::string>& rows);

}  // namespace sluice::bench::accuracy
