// Megatron-LM's arguments for the models of the catalogue, in both directions.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "import/import.h"
#include "import/layer_frequency.h"
#include "import/megatron_arguments.h"
#include "import/megatron_model.h"
#include "model/blocks/model_files.h"
#include "model/cluster/catalogue.h"
#include "model/errors.h"
#include "model/scenario/scenario.h"
#include "sim/engine/predict.h"

namespace sluice::test {
namespace {

using Json = nlohmann::json;

Json scenario_of_model(const Json& model) {
  return {{"model", model},
          {"cluster", {{"name", "dgx-h100"}, {"nodes", 64}}},
          {"schedule", {{"name", "1f1b"}}},
          {"parallelism", {{"pp", 2}, {"tp", 2}, {"gpus", 512}, {"sequence_parallel", true}}},
          {"batch", {{"global_batch", 512}, {"sequence_length", 1024}, {"micro_batch", 1}}}};
}

// The parameters of a model, and the time and memory of an iteration.
std::string facts_of(const Scenario& scenario) {
  const Model& model = *scenario.model;
  const Prediction prediction = predict(Setup(scenario));
  return fmt::format("{} parameters, {} active, {} of multi-token prediction, {} ns, {} bytes", parameters(model),
                     active_parameters(model), model.mtp_layers == 0 ? 0 : mtp_layer_parameters(model),
                     prediction.iteration.count(), prediction.fit->needed_bytes);
}

std::string facts_of_line(const std::string& line) {
  Imported imported = import_megatron_line(line, "line");
  EXPECT_TRUE(imported.notes.empty()) << imported.notes.front();
  check_complete(imported.scenario, "line", imported);
  imported.scenario["cluster"] = {{"name", "dgx-h100"}, {"nodes", 64}};
  imported.scenario["parallelism"]["gpus"] = 512;
  return facts_of(scenario_from_json(imported.scenario, "line", ""));
}

TEST(MegatronModels, PrintedArgumentsDescribeTheSameModel) {
  std::map<std::string, std::string> lacks;
  for (const CatalogueFile& file : model_files()) {
    SCOPED_TRACE(file.name);
    const int layers = scenario_from_json(scenario_of_model(file.name), "scenario", "").model->layers;
    Json document = scenario_of_model(file.name);
    document["parallelism"]["stage_layers"] = {layers / 2, layers - layers / 2};
    Scenario scenario = scenario_from_json(document, "scenario", "");
    scenario.chunks = 1;
    if (const std::string what = megatron_lacks(*scenario.model); !what.empty()) {
      lacks[std::string(file.name)] = what;
      EXPECT_THROW(megatron_arguments(scenario), InputError);
      continue;
    }
    const std::string line = megatron_arguments(scenario);
    SCOPED_TRACE(line);
    EXPECT_EQ(facts_of_line(line), facts_of(scenario));
  }
  const std::map<std::string, std::string> expected = {{"bloom-176b", "a norm of the embedding or a bias of the head"},
                                                       {"deepseek-v4-flash", "hyper-connections"},
                                                       {"gemma-3-4b", "norms other than one before each block"},
                                                       {"gemma-4-26b-a4b", "norms other than one before each block"},
                                                       {"gemma-4-31b", "norms other than one before each block"},
                                                       {"kimi-k3", "attention over residual streams"},
                                                       {"llama4-maverick", "attention in chunks"},
                                                       {"minimax-m2.5", "a norm over all heads of queries and keys"},
                                                       {"minimax-m3", "attention to chosen blocks of tokens"}};
  EXPECT_EQ(lacks, expected);
}

// The words of a line, without quotes.
std::vector<std::vector<std::string>> arguments_in_line(const std::string& line) {
  std::vector<std::vector<std::string>> out;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) {
    std::erase(word, '\'');
    if (word.starts_with("--")) out.emplace_back();
    out.back().push_back(word);
  }
  return out;
}

// The attributes of the configuration that arguments of a model set, as Megatron-LM prints and Megatron-Bridge writes
// them: with lists instead of expressions.
std::map<std::string, std::string> attributes_of(const std::string& line, bool bridge) {
  const std::map<std::string, std::pair<std::string, std::string>> others = {
      {"--disable-bias-linear", {"add_bias_linear", "False"}},
      {"--untie-embeddings-and-output-weights",
       {bridge ? "share_embeddings_and_output_weights" : "untie_embeddings_and_output_weights",
        bridge ? "False" : "True"}},
      {"--swiglu", {bridge ? "gated_linear_unit" : "swiglu", "True"}},
      {"--quick-geglu", {bridge ? "gated_linear_unit" : "quick_geglu", "True"}}};
  std::map<std::string, std::string> out;
  for (const std::vector<std::string>& words : arguments_in_line(line)) {
    std::string name = words.front().substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (bridge && name == "num_experts") name = "num_moe_experts";
    if (bridge && name == "group_query_attention") continue;
    std::string value = words.size() == 1 ? "True" : words[1];
    if (const auto other = others.find(words.front()); other != others.end()) std::tie(name, value) = other->second;
    if (name == "window_size") value = fmt::format("{}{}{}", bridge ? "[" : "(", value, bridge ? "]" : ")");
    if (value.starts_with('(') && name.ends_with("freq")) {
      const Json list = layer_frequency(value);
      value = fmt::format("[{}]", fmt::join(list.get<std::vector<int>>(), ", "));
    }
    out[name] = value;
  }
  return out;
}

// What dumps of Megatron-LM and configurations of Megatron-Bridge have besides, also for models that do not use it.
constexpr std::pair<const char*, const char*> kPrintedDefaults[] = {
    {"softmax_type", "vanilla"},          {"linear_conv_kernel_dim", "4"}, {"linear_num_key_heads", "16"},
    {"linear_num_value_heads", "32"},     {"mamba_state_dim", "128"},      {"dsa_indexer_topk_freq", "1"},
    {"dsa_indexer_skip_topk_offset", "0"}};

TEST(MegatronModels, DumpsAndConfigurationsDescribeTheSameModel) {
  int models = 0;
  for (const CatalogueFile& file : model_files()) {
    SCOPED_TRACE(file.name);
    const Model model = parse_model(file.text, std::string(file.name));
    if (!megatron_lacks(model).empty()) continue;
    ++models;
    Arguments arguments;
    if (is_megatron_hybrid(model)) arguments.add("--hybrid-layer-pattern", megatron_pattern(model, {model.layers}));
    add_megatron_model(model, 1024, arguments);
    arguments.add("--micro-batch-size", 1);
    const std::string line = arguments.take() + " --bf16";
    const Json expected = import_megatron_line(line, "line").scenario.at("model");
    std::map<std::string, std::string> dumped = attributes_of(line, false);
    std::map<std::string, std::string> written = attributes_of(line, true);
    dumped.insert(std::begin(kPrintedDefaults), std::end(kPrintedDefaults));
    written.insert(std::begin(kPrintedDefaults), std::end(kPrintedDefaults));
    std::string dump;
    for (const auto& [name, value] : dumped) dump += fmt::format("  {} ........ {}\n", name, value);
    const Imported of_dump = import_text(dump, "log");
    EXPECT_THAT(of_dump.notes, testing::IsEmpty());
    EXPECT_EQ(of_dump.scenario.at("model"), expected) << dump;
    std::string yaml = "train:\n  micro_batch_size: 1\n  global_batch_size: 8\nmodel:\n";
    for (const auto& [name, value] : written) {
      if (name != "micro_batch_size") yaml += fmt::format("  {}: {}\n", name, value);
    }
    const Imported of_yaml = import_text(yaml, "run.yaml");
    EXPECT_THAT(of_yaml.notes, testing::IsEmpty());
    EXPECT_EQ(of_yaml.scenario.at("model"), expected) << yaml;
  }
  EXPECT_GT(models, 40);
}

}  // namespace
}  // namespace sluice::test
