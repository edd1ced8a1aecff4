#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/cost/explain.h"
#include "model/scenario/setup.h"

namespace sluice::tools {

// What `simulate --explain[=STAGE]` asks for: a stage, or "all" for the first of each content. Of microbatch 0.
// Throws InputError if there is no such stage, or the scenario's cost knows no kernels.
std::vector<ExplainedOp> explained_ops(const Setup& setup, const std::string& stage);

// A table for each op of the slice with the longest context.
std::string explain_text(const Setup& setup, std::span<const ExplainedOp> ops);

// The member "explain" of `simulate --json` (docs/formats.md), every slice.
nlohmann::ordered_json explain_json(std::span<const ExplainedOp> ops);

}  // namespace sluice::tools
