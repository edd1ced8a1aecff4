#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"
#include "model/timeline/held_tensors.h"
#include "sim/engine/predict.h"

namespace sluice::tools {

// Returns the ops of microbatch 0 for `simulate --explain[=STAGE]`; "all" means the first stage of each content.
// Throws InputError if the stage does not exist or the scenario's cost is not analytic.
std::vector<ExplainedOp> explained_ops(const Setup& setup, const std::string& stage);

// Returns one table per op of the last slice, which has the longest context.
std::string explain_text(const Setup& setup, std::span<const ExplainedOp> ops);

// Returns lines about the kernels whose time was measured (--kernel-times), and the shapes without a measurement; ""
// for a scenario without such times.
std::string measured_kernels_text(const Setup& setup);
// Returns the member "measured_kernels" of `simulate --json`; null without such times.
nlohmann::ordered_json measured_kernels_json(const Setup& setup);

// Returns the member "explain" of `simulate --json` (docs/formats.md), for all slices.
nlohmann::ordered_json explain_json(std::span<const ExplainedOp> ops);

// What a rank holds at the peak of its memory.
struct ExplainedMemory {
  int rank = 0;
  std::vector<HeldTensor> tensors;
};

// Returns it for `simulate --explain-memory[=RANK]`; "most" means the rank with the highest peak. Throws InputError if
// the rank does not exist or the scenario has no model.
ExplainedMemory explained_memory(const Setup& setup, const Prediction& prediction, const std::string& rank);

// Returns the table of it, largest tensors first, and the memory that the device needs.
std::string explain_memory_text(const Setup& setup, const Prediction& prediction, const ExplainedMemory& explained);

// Returns the member "explain_memory" of `simulate --json` (docs/formats.md).
nlohmann::ordered_json explain_memory_json(const Prediction& prediction, const ExplainedMemory& explained);

}  // namespace sluice::tools
