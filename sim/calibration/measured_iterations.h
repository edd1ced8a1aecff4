#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/input/csv.h"
#include "model/scenario/scenario.h"

namespace sluice::sim {

// An iteration that somebody ran: what was asked and what it took.
struct MeasuredIteration {
  std::string place;    // "file: row 7"
  std::string setting;  // in a few words: "hidden 6144, tp 8, pp 2, dp 16, micro_batch 4"
  Scenario scenario;
  double seconds = 0;  // of one iteration; 0 where it ran out of memory
  bool out_of_memory = false;
};

// Whether the table has a column of measured times that read_measured_iterations knows.
bool has_measured_times(const CsvTable& table);

// Reads a table of measured iterations. Each row lays its cells over `base`, a scenario document whose relative paths
// are taken from `folder`. Columns:
//   mbs, gbs, vpp, seq_length, as the flags have them, or
//   layers, hidden, ffn_hidden, heads, kv_heads, vocab, seq; tp, pp, dp or gpus, cp, ep, vp or interleave; micro_batch,
//   global_batch or (num_)microbatches, slices; schedule; recompute (none, selective, full; "+sequence-parallel")
//   and one time: iter_ms, iter_s, derived_iter_ms, derived_iter_s, median_step_s, iteration_s, iteration_ms or
//   tokens_per_s_thousands. "OOM" as a time says that it ran out of memory.
// Columns of other names are left to the reader. Learned positions are as many as the sequence has tokens.
// Throws InputError naming file, row and column.
MeasuredIteration read_measured_iteration(const CsvTable& table, int row, const nlohmann::json& base,
                                          const std::string& folder = "");
std::vector<MeasuredIteration> read_measured_iterations(const CsvTable& table, const nlohmann::json& base,
                                                        const std::string& folder = "");

// Columns that rows are not read from.
std::vector<std::string> unused_columns(const CsvTable& table);

}  // namespace sluice::sim
