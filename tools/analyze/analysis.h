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

// Measured steps to analyze.
struct AnalysisRequest {
  std::string timeline;       // a file, a folder, or files separated by commas
  std::string names;          // file with the names of the ops; empty: those of ByteDance's timelines
  bool all_steps = false;     // keep the first step also if it was a warm-up
  std::optional<int> gpus;    // of the job; by default the recorded workers
  std::optional<int> layers;  // of the model, for Counterfactuals::lighter_last
};

// Reads and analyzes measured steps. Throws InputError.
Analysis analyze(const AnalysisRequest& request);

std::string analysis_text(const Analysis& analysis, std::size_t top);
nlohmann::ordered_json analysis_document(const Analysis& analysis);

}  // namespace sluice::tools
