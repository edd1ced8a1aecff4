#include "benchmarks/accuracy/expert_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "sim/calibration/correction_fit.h"
#include "sim/engine/predict.h"

namespace sluice::bench::accuracy {
namespace {

bool yes(const CsvTable& table, int row, const char* column) { return table.text(row, column) == "True"; }

// Of an NVL72 domain 64 GPUs are used, so that groups of ranks lie within it. A question mark in `recompute` is a guess
// of the table.
Json mlperf_document(const CsvTable& table, int row) {
  Json out = base_of("mlperf-experts");
  Json& parallelism = out["parallelism"];
  for (const char* key : {"tp", "pp", "cp", "ep", "dp"}) parallelism[key] = table.integer(row, key, 1, 1 << 20);
  parallelism["sequence_parallel"] = parallelism["tp"] > 1;
  parallelism["pipeline_layout"] = table.text(row, "layout");
  parallelism["precision"] = table.text(row, "precision");
  if (const std::string& word = table.text(row, "recompute"); word != "none") {
    parallelism["recompute"] = "selective";
    parallelism["recompute_modules"] = {word.substr(0, word.find('?'))};
  }
  const std::string& type = table.text(row, "gpu_type");
  if (type != "GB200" && type != "GB300") table.fail(row, "gpu_type", "expected GB200 or GB300");
  out["cluster"] = {{"name", type == "GB200" ? "gb200-nvl72" : "gb300-nvl72"}, {"gpus_per_node", 64}};
  if (!table.text(row, "model").starts_with("DeepSeek-V3")) table.fail(row, "model", "expected DeepSeek-V3");
  const bool combined = yes(table, row, "moe_a2a_overlap_1f1b");
  out["schedule"] = {{"name", combined ? "combined-1f1b" : "interleaved-1f1b"}};
  if (!yes(table, row, "delay_wgrad")) parallelism["weave"] = "whole-backward";
  out["batch"] = {{"micro_batch", table.integer(row, "mbs", 1, 1 << 20)},
                  {"global_batch", table.integer(row, "gbs", 1, 1 << 30)},
                  {"sequence_length", table.integer(row, "seq", 1, 1 << 30)}};
  return out;
}

double mlperf_seconds(const Scenario& scenario) { return predict(Setup(scenario)).iteration_s(); }

}  // namespace

TableScore score_mlperf_experts(const CsvTable& table) {
  struct Row {
    std::string place;
    std::string setting;
    Scenario scenario;
    double measured_s = 0;
    double predicted_s = 0;
    bool is_gb200 = false;
  };
  TableScore score;
  std::vector<Row> rows;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      Row one{.place = table.place(row),
              .setting = fmt::format("{} {} GPUs, tp {} pp {} ep {} mbs {} gbs {}", table.text(row, "gpu_type"),
                                     table.text(row, "gpus"), table.text(row, "tp"), table.text(row, "pp"),
                                     table.text(row, "ep"), table.text(row, "mbs"), table.text(row, "gbs")),
              .scenario = scenario_from_json(mlperf_document(table, row), table.place(row), ""),
              .measured_s = table.number(row, "iter_s", 1e-6, 1e6),
              .is_gb200 = table.text(row, "gpu_type") == "GB200"};
      const Prediction prediction = predict(Setup(one.scenario));
      one.predicted_s = prediction.iteration_s();
      score.verdicts.push_back({one.place, one.setting, true, prediction.fit->fits});
      const auto add = [&](const char* group, double seconds) {
        score.comparisons.push_back(
            with_scenario({group, one.place, one.setting, one.measured_s, seconds, "s"}, one.scenario));
      };
      add("iteration time, uncalibrated", one.predicted_s);
      // What the overlap saves, in prediction: the error is that of a run that hides nothing.
      Scenario apart = one.scenario;
      apart.training.joint_overlap = Training::JointOverlap::none;
      add("iteration time without overlap", mlperf_seconds(apart));
      rows.push_back(std::move(one));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  for (const Row& row : rows) {
    std::vector<PredictedAndMeasured> others;
    for (const Row& other : rows) {
      if (other.is_gb200 && &other != &row) others.push_back({other.predicted_s, other.measured_s});
    }
    const auto add = [&](const char* group, double seconds) {
      score.comparisons.push_back(
          with_scenario({group, row.place, row.setting, row.measured_s, seconds, "s"}, row.scenario));
    };
    if (!others.empty()) {
      // These runs evaluate after every step. Before that, Megatron-LM's training loop collects Python's garbage and
      // waits for all ranks, which takes a time of its own; the shortest iteration shows it best.
      const auto shortest = std::min_element(others.begin(), others.end(),
                                             [](const auto& a, const auto& b) { return a.measured_s < b.measured_s; });
      add("iteration time, with the fixed time of one GB200 row",
          fit_correction({&*shortest, 1}, CorrectionTerms::fixed).at(row.predicted_s).seconds);
    }
    if (others.size() > 1) {
      add("iteration time, calibrated on all other GB200 rows", fit_correction(others).at(row.predicted_s).seconds);
    }
  }
  return score;
}

}  // namespace sluice::bench::accuracy
