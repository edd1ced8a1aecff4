#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>

#include "benchmarks/accuracy/iteration_tables.h"
#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "sim/engine/predict.h"

namespace sluice::bench::accuracy {
namespace {

constexpr int kGpus = 8;

// The number after the first `word` in the text, or `fallback`.
int number_after(const std::string& text, const std::string& word, int fallback) {
  const std::size_t at = text.find(word);
  if (at == std::string::npos) return fallback;
  int value = fallback;
  std::from_chars(text.data() + at + word.size(), text.data() + text.size(), value);
  return value;
}

// The scenario of a row such as "tp1ep4pp2", on 8 GPUs. The first layer of a mixture of experts is dense, as in the
// scripts of the measurements.
Scenario scenario_of(const CsvTable& table, int row, Json document, const Json& models) {
  const std::string& name = table.text(row, "model");
  if (!models.contains(name)) table.fail(row, "model", "expected a model of simumax-models.json");
  Json model = models.at(name);
  const auto layers = table.integer(row, "layers", 1, 1000);
  model["num_layers"] = layers;
  for (const char* yes : {"swiglu", "untie_embeddings_and_output_weights", "disable_bias_linear"}) model[yes] = true;
  model["position_embedding_type"] = "rope";
  model["normalization"] = "RMSNorm";
  model["hidden_dropout"] = model["attention_dropout"] = 0;
  if (model.contains("num_experts")) {
    Json kinds = Json::array({0});
    for (int i = 1; i < layers; ++i) kinds.push_back(1);
    model["moe_layer_freq"] = kinds;
  }
  document["model"] = model;
  const std::string& parallel = table.text(row, "parallel");
  const int tp = number_after(parallel, "tp", 1);
  const int cp = number_after(parallel, "cp", 1);
  const int pp = number_after(parallel, "pp", 1);
  if (tp < 1 || cp < 1 || pp < 1 || kGpus % (tp * cp * pp) != 0) {
    table.fail(row, "parallel", "expected sizes whose product divides 8");
  }
  Json& sizes = document["parallelism"];
  sizes["tp"] = tp;
  sizes["cp"] = cp;
  sizes["pp"] = pp;
  sizes["ep"] = number_after(parallel, "ep", 1);
  sizes["dp"] = kGpus / (tp * cp * pp);
  document["batch"]["microbatches"] = table.integer(row, "microbatches", 1, 100000);
  document["batch"]["sequence_length"] = number_after(table.text(row, "case"), "seq", 4096);
  return scenario_from_json(document, table.place(row), "");
}

// "0:62136;1:62136": MiB by world rank.
std::map<int, double> by_world_rank(const std::string& text) {
  std::map<int, double> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(';', at), text.size());
    const std::size_t colon = text.find(':', at);
    if (colon < end) {
      int rank = 0;
      double value = 0;
      std::from_chars(text.data() + at, text.data() + colon, rank);
      std::from_chars(text.data() + colon + 1, text.data() + end, value);
      out[rank] = value;
    }
    at = end + 1;
  }
  return out;
}

}  // namespace

TableScore score_simumax(const CsvTable& table) {
  const Json base = base_of("simumax");
  const Json models = base_of("simumax-models");
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const Scenario scenario = scenario_of(table, row, base, models);
      const Prediction prediction = predict(Setup(scenario));
      const std::string& setting = table.text(row, "case");
      const bool experts = scenario.model->has_experts();
      const std::string kind = experts ? ", experts" : scenario.training.cp > 1 ? ", cp" : ", dense";
      const auto add = [&](Comparison one) { score.comparisons.push_back(with_scenario(std::move(one), scenario)); };
      add({"iteration time" + kind, table.place(row), setting, table.number(row, "real_ms", 1e-3, 1e9),
           1e3 * to_seconds(prediction.metrics.makespan), "ms"});
      const std::map<int, double> measured = by_world_rank(table.text(row, "peak_alloc_mb_by_rank"));
      for (int rank = 0; rank < std::ssize(prediction.memory); ++rank) {
        const auto found = measured.find(rank * kGpus / scenario.training.pp);
        if (found == measured.end()) continue;
        const auto peak = static_cast<double>(prediction.memory[rank].peak_bytes);
        add({"memory by rank" + kind, table.place(row), fmt::format("{} rank {}", setting, rank), found->second,
             peak / (1 << 20), "MiB"});
      }
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

}  // namespace sluice::bench::accuracy
