#include "benchmarks/accuracy/memory_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "benchmarks/accuracy/scenarios.h"
#include "benchmarks/accuracy/zero_bubble_schedule.h"
#include "model/errors.h"
#include "sim/engine/predict.h"

namespace sluice::bench::accuracy {
namespace {

constexpr double kGiB = 1 << 30;

std::int64_t held(const RankMemory& memory, std::initializer_list<MemoryClass> classes) {
  std::int64_t sum = 0;
  for (const MemoryClass c : classes) sum += memory.at_peak[static_cast<std::size_t>(c)];
  return sum;
}

// The schedule of the paper's scheduler for a limit of `held` microbatches per rank, with op times close to its
// profiles: I as long as F, W 0.7 of it (table 6).
Schedule scheduled(const Scenario& scenario, int held) {
  ZeroBubbleProblem problem{.num_microbatches = scenario.microbatches, .shape = scenario.shape};
  const RankBudget budget{.forward = std::chrono::milliseconds(10),
                          .input_gradient = std::chrono::milliseconds(10),
                          .weight_gradient = std::chrono::milliseconds(7),
                          .limit = held};
  problem.ranks.assign(scenario.training.pp, budget);
  return plan_zero_bubble(problem).schedule;
}

}  // namespace

TableScore score_korthikanti_memory(const CsvTable& table) {
  const Json models = base_of("korthikanti-memory");
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const std::string& model = table.text(row, "model");
      const std::string& recompute = table.text(row, "recompute");
      if (!models.contains(model)) table.fail(row, "model", "expected a model of korthikanti-memory.json");
      Json document = models.at(model);
      document["cluster"] = "dgx-a100-80gb";
      document["model"]["vocab_size"] = 51200;
      document["model"]["max_position_embeddings"] = document["batch"]["sequence_length"] = 2048;
      document["parallelism"]["flash_attention"] = false;
      document["parallelism"]["tp"] = 8;
      if (recompute == "seqsel") {
        document["parallelism"]["sequence_parallel"] = true;
        document["parallelism"]["recompute"] = "selective";
      } else if (recompute != "none") {
        table.fail(row, "recompute", "expected none or seqsel");
      }
      const Prediction prediction = predict(Setup(scenario_from_json(document, table.place(row), "")));
      const std::string setting = fmt::format("{}, {}", model, recompute);
      // The paper's figure excludes the embedding, so the second stage is compared if there is one.
      const RankMemory& middle = prediction.memory[prediction.memory.size() > 1 ? 1 : 0];
      score.comparisons.push_back(
          {"parameters and optimizer", table.place(row), setting, table.number(row, "params_and_optimizer_gib", 0, 1e6),
           static_cast<double>(held(middle, {MemoryClass::weights, MemoryClass::gradients, MemoryClass::optimizer})) /
               kGiB,
           "GiB"});
      score.comparisons.push_back(
          {"activations of the first rank", table.place(row), setting, table.number(row, "activations_gib", 0, 1e6),
           static_cast<double>(held(prediction.memory[0], {MemoryClass::activations, MemoryClass::keys_values})) / kGiB,
           "GiB"});
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

TableScore score_zero_bubble_memory(const CsvTable& table) {
  static const std::map<std::string, std::string> kFamilies = {
      {"1F1B", "1f1b"}, {"1F1B-I", "interleaved-1f1b"}, {"ZB-1p", "zb-h1"}, {"ZB-2p", "zb-h2"}};
  const Json base = base_of("zero-bubble-memory");
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const std::string& name = table.text(row, "schedule");
      const auto family = kFamilies.find(name);
      if (family == kFamilies.end()) table.fail(row, "schedule", "expected 1F1B, 1F1B-I, ZB-1p or ZB-2p");
      const auto layers = static_cast<int>(table.integer(row, "layers", 1, 10000));
      const auto ranks = static_cast<int>(table.integer(row, "pp", 1, 1000));
      if ((layers + 2) % ranks != 0) table.fail(row, "layers", "expected two less than a multiple of pp");
      // The first and last stage have one layer fewer. With interleaving a chunk is one layer.
      const int chunks = name == "1F1B-I" ? (layers + 2) / ranks : 1;
      std::vector<int> stages(static_cast<std::size_t>(ranks * chunks), (layers + 2) / (ranks * chunks));
      --stages.front();
      --stages.back();
      Json document = base;
      document["model"]["num_layers"] = layers;
      document["model"]["hidden_size"] = table.integer(row, "hidden", 1, 1 << 20);
      document["model"]["num_attention_heads"] = table.integer(row, "heads", 1, 1 << 12);
      document["batch"]["sequence_length"] = table.integer(row, "seq", 1, 1 << 20);
      document["model"]["max_position_embeddings"] = document["batch"]["sequence_length"];
      document["batch"]["micro_batch"] = table.integer(row, "micro_batch", 1, 1 << 12);
      document["batch"]["microbatches"] = table.integer(row, "num_microbatches", 1, 1 << 16);
      document["parallelism"]["pp"] = ranks;
      if (chunks > 1) document["parallelism"]["vpp"] = chunks;
      document["parallelism"]["stage_layers"] = stages;
      document["schedule"] = family->second;
      const Scenario scenario = scenario_from_json(document, table.place(row), "");
      const int held = name == "ZB-1p" ? ranks : name == "ZB-2p" ? 2 * ranks : 0;
      const Prediction prediction = predict(held > 0 ? Setup(scenario, scheduled(scenario, held)) : Setup(scenario));
      const auto worst =
          std::max_element(prediction.memory.begin(), prediction.memory.end(),
                           [](const RankMemory& a, const RankMemory& b) { return a.peak_bytes < b.peak_bytes; });
      score.comparisons.push_back(
          {"peak memory of the worst rank", table.place(row),
           fmt::format("{} {}, {} microbatches", table.text(row, "model"), name, table.text(row, "num_microbatches")),
           table.number(row, "peak_mem_GB", 1e-3, 1e6), static_cast<double>(worst->peak_bytes) / 1e9, "GB"});
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

}  // namespace sluice::bench::accuracy
