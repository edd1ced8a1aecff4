#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"

namespace sluice::tools {

// Returns the ops of microbatch 0 for `simulate --explain[=STAGE]`; "all" means the first stage of each content.
// Throws InputError if the stage does not exist or the scenario's cost is not analytic.
std::vector<ExplainedOp> explained_ops(const Setup& setup, const std::string& stage);

// Returns one table per op of the last slice, which has the longest context.
std::string explain_text(const Setup& setup, std::span<const ExplainedOp> ops);

// Returns the member "explain" of `simulate --json` (docs/formats.md), for all slices.
nlohmann::ordered_json explain_json(std::span<const ExplainedOp> ops);

}  // namespace sluice::tools
