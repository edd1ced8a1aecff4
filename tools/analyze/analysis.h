#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "traces/measured/causes_of_slowness.h"
#include "traces/measured/measured_run.h"
#include "traces/measured/recognised.h"
#include "traces/measured/slowdown.h"

namespace sluice::tools {

// What `sluice analyze` finds in measured steps.
struct Analysis {
  MeasuredRun run;
  Recognised schedule;
  std::optional<Slowdown> published;  // by the rules of StragglerAnalysis, where they apply
  Slowdown observed;                  // by ours
  std::vector<StepGraph> graphs;      // by the observed rule
  Counterfactuals what_if;
  int gpus = 0;  // whose time a slow step wastes
};

std::string analysis_text(const Analysis& analysis, std::size_t top);
nlohmann::ordered_json analysis_document(const Analysis& analysis);

}  // namespace sluice::tools
