#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/input/csv.h"
#include "model/scenario/scenario.h"

namespace sluice::sim {

// A measured iteration: its scenario and time.
struct MeasuredIteration {
  std::string place;    // "file: row 7"
  std::string setting;  // description: "hidden 6144, tp 8, pp 2, dp 16, micro_batch 4"
  Scenario scenario;
  double seconds = 0;  // of one iteration; 0 where it ran out of memory
  bool out_of_memory = false;
};

// Whether the table has one of the columns of measured times of read_measured_iterations.
bool has_measured_times(const CsvTable& table);

// Reads a table of measured iterations. The cells of a row override `base`, a scenario document whose relative paths
// are resolved against `folder`. Columns:
//   mbs, gbs, vpp, seq_length, with the meaning of the flags, or
//   layers, hidden, ffn_hidden or ffn, heads, kv_heads, vocab, seq; tp, pp, dp or gpus, cp, ep, vp or interleave;
//   micro_batch, global_batch or (num_)microbatches, slices; schedule; recompute (none, selective, full;
//   "+sequence-parallel"); any key of a scenario by its pointer, such as /parallelism/precision, whose cells are JSON
//   or plain text, and empty where the base's value stays; and one time: iter_ms, iter_s, derived_iter_ms,
//   derived_iter_s, median_step_s, iteration_s, iteration_ms or tokens_per_s_thousands. "OOM" as a time means out of
//   memory.
// Ignores other columns (see check_columns). Sets the number of learned positions to the sequence length.
// Throws InputError naming file, row and column, also if a number of microbatches contradicts the global batch.
MeasuredIteration read_measured_iteration(const CsvTable& table, int row, const nlohmann::json& base,
                                          const std::string& folder = "");
// The same without reading a time.
MeasuredIteration read_configuration(const CsvTable& table, int row, const nlohmann::json& base,
                                     const std::string& folder = "");
// The scenario of a row, as a document.
nlohmann::json configuration_document(const CsvTable& table, int row, const nlohmann::json& base);
std::vector<MeasuredIteration> read_measured_iterations(const CsvTable& table, const nlohmann::json& base,
                                                        const std::string& folder = "");

// Throws InputError naming a column that read_measured_iteration does not know and that is not a description (source,
// comment, note, notes, name), or two columns with the same meaning.
void check_columns(const CsvTable& table);

}  // namespace sluice::sim
