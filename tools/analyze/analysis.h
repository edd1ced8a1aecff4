#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/analyze/answer.h"
#include "traces/measured/causes_of_slowness.h"
#include "traces/measured/measured_run.h"
#include "traces/measured/recognised.h"
#include "traces/measured/slowdown.h"
#include "traces/profile/gpu_trace.h"

namespace sluice::tools {

// What `sluice analyze` finds in measured steps.
struct Analysis {
  MeasuredRun run;
  Recognised schedule;
  std::optional<Slowdown> early_receives;  // by the rules of StragglerAnalysis, where they apply
  Slowdown observed;                       // by ours
  std::vector<StepGraph> graphs;           // by the observed rule
  Counterfactuals what_if;
  std::vector<AnswerLine> answer;
  int gpus = 0;  // whose time a slow step wastes
};

// Measured steps to analyze.
struct AnalysisRequest {
  std::string timeline;       // a file, a folder, or files separated by commas
  std::string names;          // file with the names of the ops; empty: those of ByteDance's timelines
  bool all_steps = false;     // keep the first step also if it was a warm-up
  std::optional<int> gpus;    // of the job; by default the recorded workers
  std::optional<int> layers;  // of the model, for Counterfactuals::lighter_last and move_layers
  bool kernels = false;       // analyze the kernels of traces of PyTorch also where these have ops of a pipeline
};

// Measured steps as they were read: of a pipeline, or kernels of GPUs.
struct MeasuredSteps {
  MeasuredRun run;                // empty if there is a profile
  std::vector<GpuTrace> profile;  // of traces without ops of a pipeline
};

// Throws InputError.
MeasuredSteps read_steps(const AnalysisRequest& request);

// Analyzes measured steps of a pipeline. Throws InputError.
Analysis analyze(MeasuredRun read, const AnalysisRequest& request);

// The causes with a remedy each, and its gain by replay. `layers`: of the model, if known.
std::vector<AnswerLine> answer_of(const MeasuredRun& run, const std::vector<StepGraph>& graphs,
                                  const Counterfactuals& what_if, std::optional<int> layers);

std::string analysis_text(const Analysis& analysis, std::size_t top);

nlohmann::ordered_json analysis_document(const Analysis& analysis);

// A scenario with the measured times as its costs, which every command reads: shape and schedule of the run, for each
// stage the mean of its forwards and backwards over all workers and steps, the median transfer, and the mean time from
// the last pass to the end of the step. Backwards that were not split are divided evenly into I and W. Slices of the
// run count as microbatches.
nlohmann::ordered_json measured_scenario(const Analysis& analysis);

}  // namespace sluice::tools
