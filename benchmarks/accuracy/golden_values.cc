#include "benchmarks/accuracy/golden_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "import/import.h"
#include "model/cluster/cluster.h"
#include "model/errors.h"
#include "model/scenario/scenario.h"
#include "sim/engine/predict.h"

namespace sluice::bench::accuracy {
namespace {

using nlohmann::json;

// Words of the vocabulary of GPT-2's tokenizer, which these tests use; the arguments name only its files.
constexpr int kGpt2Words = 50257;

// PyTorch's deterministic mode needs CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8; these tests set the former: 32 MiB for
// each of two threads, on every GPU. Newer GPUs have this size by default.
constexpr std::int64_t kDeterministicWorkspace = std::int64_t{2} * 32 << 20;
constexpr std::int64_t kTransformerEngineOnA100 = std::int64_t{4} << 20;

// The arguments as on a command line: the tests' files write "--flag True".
std::string arguments_of(std::string_view line) {
  std::string out;
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    if (end > at) words.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool value_follows = i + 1 < words.size() && words[i].starts_with("--");
    if (value_follows && words[i + 1] == "False") {
      ++i;
    } else {
      out += fmt::format("{}{}", out.empty() ? "" : " ", words[i]);
      if (value_follows && words[i + 1] == "True") ++i;
    }
  }
  if (line.find("--vocab-size ") == std::string_view::npos) out += fmt::format(" --vocab-size {}", kGpt2Words);
  return out;
}

Scenario scenario_of_row(const CsvTable& table, int row) {
  static const std::map<std::string, std::string> kNodes = {
      {"a100", "dgx-a100-80gb"}, {"h100", "dgx-h100"}, {"gb200", "gb200-nvl72"}};
  const std::string& family = table.text(row, "family");
  const std::string& line = table.text(row, "all_args");
  const auto skip = [&](const char* why) { throw InputError(fmt::format("{}: {}", table.place(row), why)); };
  if (family != "gpt" && family != "moe") skip("no GPT model");
  if (line.find("--perform-rl-step") != std::string::npos) skip("reinforcement learning");
  const auto node = kNodes.find(table.text(row, "gpu_type"));
  if (node == kNodes.end()) table.fail(row, "gpu_type", "expected a100, h100 or gb200");
  const Imported imported = import_megatron_line(
      fmt::format("{} --world-size {}", arguments_of(line), table.integer(row, "gpus", 1, 1 << 20)), table.place(row));
  json document = imported.scenario;
  document["cluster"] = node->second;
  document["cost"] = "analytic";
  const bool deterministic = line.find("--deterministic-mode") != std::string::npos;
  // The older container, of these files and of the tests of experts, has a Transformer Engine without deterministic
  // fused attention.
  const std::string& source = table.text(row, "source");
  const bool older = source.find("_lts_dgxa100_") != std::string::npos ||
                     (family == "moe" && source.find("_lts_") != std::string::npos);
  if (older && deterministic) document["parallelism"]["flash_attention"] = false;
  Scenario scenario = scenario_from_json(document, table.place(row), "");
  if (deterministic && node->first == "a100") {
    scenario.cluster->gpu.workspace_bytes = kDeterministicWorkspace + kTransformerEngineOnA100;
  }
  return scenario;
}

}  // namespace

TableScore score_golden_values(const CsvTable& table) {
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      if (table.text(row, "mem_max_allocated_bytes").empty()) continue;
      const Scenario scenario = scenario_of_row(table, row);
      const Prediction prediction = predict(Setup(scenario));
      const std::string group =
          fmt::format("peak allocated, {}, {}", table.text(row, "family"), table.text(row, "gpu_type"));
      score.comparisons.push_back(with_scenario({group, table.place(row), table.text(row, "test"),
                                                 table.number(row, "mem_max_allocated_bytes", 1, 1e15) / 1e9,
                                                 static_cast<double>(prediction.memory.back().peak_bytes) / 1e9, "GB"},
                                                scenario));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

}  // namespace sluice::bench::accuracy
