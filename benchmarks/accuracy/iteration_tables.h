#pragma once

#include "benchmarks/accuracy/score.h"
#include "model/input/json_reader.h"

namespace sluice::bench::accuracy {

// Tables of measured iteration times.
TableScore score_vtrain(const CsvTable& table);       // VIA-Research/vTrain, ground_truth_single and _multi
TableScore score_korthikanti(const CsvTable& table);  // Korthikanti et al. 2022, table 5
TableScore score_ptdp(const CsvTable& table);         // Narayanan et al. 2021 (SC'21), table 1
TableScore score_seq1f1b(const CsvTable& table);      // Sun et al. 2024 (Seq1F1B), tables 2 and 3, with out of memory
TableScore score_mlperf(const CsvTable& table);       // MLPerf training, GPT-3, after calibration on two rows
TableScore score_simumax(const CsvTable& table);      // MooreThreads/SimuMax docs/b200: time, and memory by rank

// A user's table of measured iterations, as `sluice calibrate` reads them, with a column peak_memory_gib if it has one.
// `base` is the scenario of what the rows do not contain, with paths relative to `folder`. Throws InputError for
// unknown columns.
TableScore score_users_table(const CsvTable& table, const Json& base, const std::string& folder);

}  // namespace sluice::bench::accuracy
