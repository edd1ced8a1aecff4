#pragma once

#include "benchmarks/accuracy/score.h"

namespace sluice::bench::accuracy {

// Tables of measured iteration times.
TableScore score_vtrain(const CsvTable& table);       // VIA-Research/vTrain, ground_truth_single and _multi
TableScore score_korthikanti(const CsvTable& table);  // Korthikanti et al. 2022, table 5
TableScore score_ptdp(const CsvTable& table);         // Narayanan et al. 2021 (SC'21), table 1
TableScore score_seq1f1b(const CsvTable& table);      // Sun et al. 2024 (Seq1F1B), tables 2 and 3, with out of memory
TableScore score_mlperf(const CsvTable& table);       // MLPerf training, GPT-3, after calibration on two rows
TableScore score_simumax(const CsvTable& table);      // MooreThreads/SimuMax docs/b200: time, and memory by rank

}  // namespace sluice::bench::accuracy
