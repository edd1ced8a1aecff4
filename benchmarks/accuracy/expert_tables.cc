#include "benchmarks/accuracy/expert_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "model/median.h"
#include "model/weave/weave.h"
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

struct ReplayedParts {
  std::vector<LayerTimes> forward;
  std::vector<LayerTimes> backward;
};

LayerTimes& layer_of(ReplayedParts& parts, OpKind pass, std::size_t layer) {
  std::vector<LayerTimes>& layers = pass == OpKind::F ? parts.forward : parts.backward;
  if (layer >= layers.size()) layers.resize(layer + 1);
  return layers[layer];
}

// "attn(F)" and "mlp(W)" are attention(F) and experts(W).
PassPart part_of(const CsvTable& table, int row) {
  std::string word = table.text(row, "op");
  for (const auto& [theirs, ours] : {std::pair("attn(", "attention("), std::pair("mlp(", "experts(")}) {
    if (word.starts_with(theirs)) word = ours + word.substr(std::string(theirs).size());
  }
  const std::optional<PassPart> part = parse_part(word);
  if (!part) table.fail(row, "op", "expected a part of a layer");
  return *part;
}

// A part of the trace, in microseconds. Weight gradients run on two streams.
struct TracedPart {
  PassPart part;
  std::size_t layer = 0;
  double start_us = 0;
  double end_us = 0;
  double busy_us = 0;         // of the longer stream
  double second_busy_us = 0;  // of the shorter one, or 0
  int kernels = 0;            // of the longer stream

  double extent_us() const { return end_us - start_us; }
  void add_stream(const TracedPart& other) {
    start_us = std::min(start_us, other.start_us);
    end_us = std::max(end_us, other.end_us);
    second_busy_us = std::min(busy_us, other.busy_us);
    if (other.busy_us > busy_us) kernels = other.kernels;
    busy_us = std::max(busy_us, other.busy_us);
  }
};

TracedPart traced_part(const CsvTable& table, int row) {
  return {.part = part_of(table, row),
          .layer = static_cast<std::size_t>(table.integer(row, "index", 0, 1000)),
          .start_us = table.number(row, "gpu_start_us", 0, 1e12),
          .end_us = table.number(row, "gpu_end_us", 0, 1e12),
          .busy_us = table.number(row, "gpu_busy_us", 0, 1e12),
          .kernels = static_cast<int>(table.integer(row, "kernels", 1, 1 << 20))};
}

// The extent of a part from its busy time: a gap before each kernel, and the part of the second stream's kernels that
// the multiprocessors cannot run beside those of the first. Both constants are medians over the other layers.
double contended_us(const TracedPart& part, const std::vector<TracedPart>& parts) {
  std::vector<double> gaps;
  std::vector<double> exposed;
  for (const TracedPart& other : parts) {
    if (other.layer == part.layer || communicates(other.part.part)) continue;
    const double idle_us = other.extent_us() - other.busy_us;
    if (other.second_busy_us > 0) {
      exposed.push_back(idle_us / other.second_busy_us);
    } else {
      gaps.push_back(idle_us / other.kernels);
    }
  }
  if (communicates(part.part.part)) return part.busy_us;
  if (part.second_busy_us > 0) return part.busy_us + upper_median(exposed) * part.second_busy_us;
  return part.busy_us + upper_median(gaps) * part.kernels;
}

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

TableScore score_dualpipe_trace(const CsvTable& table) {
  std::vector<TracedPart> parts;
  double last_us = 0;
  for (int row = 0; row < table.num_rows(); ++row) {
    const TracedPart part = traced_part(table, row);
    last_us = std::max(last_us, part.end_us);
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const TracedPart& each) {
      return each.part == part.part && each.layer == part.layer;
    });
    if (same == parts.end()) {
      parts.push_back(part);
    } else {
      same->add_stream(part);
    }
  }
  const Weave weave = find_weave("dualpipe");
  TableScore score;
  const auto add = [&](const char* group, const auto& microseconds) {
    ReplayedParts replayed;
    for (const TracedPart& each : parts) {
      layer_of(replayed, each.part.pass, each.layer).of(each.part.pass, each.part.part) = 1e-6 * microseconds(each);
    }
    const WovenBlock block = weave_block(weave, replayed.forward, replayed.backward);
    score.comparisons.push_back({group, fmt::format("{}: rows 1 to {}", table.source(), table.num_rows()),
                                 "F and B of 4 layers", 1e-6 * last_us, block.seconds, "s"});
  };
  add("block from the extents of its parts", [](const TracedPart& part) { return part.extent_us(); });
  add("block from their busy times", [](const TracedPart& part) { return part.busy_us; });
  add("block from their busy times and contention, held out by layer",
      [&](const TracedPart& part) { return contended_us(part, parts); });
  return score;
}

}  // namespace sluice::bench::accuracy
