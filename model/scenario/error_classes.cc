#include "model/scenario/error_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "model/blocks/attention.h"
#include "model/blocks/latent_attention.h"
#include "model/cluster/catalogue.h"
#include "model/cluster/placement.h"
#include "model/input/json_reader.h"
#include "model/scenario/scenario.h"

namespace sluice::model {
namespace {

constexpr std::array<std::string_view, 8> kKeys = {"gpu",      "model",     "code_base",     "bits",
                                                   "pipeline", "framework", "expert_groups", "scale"};
constexpr std::string_view kFile = "errors/iteration-time";
constexpr int kMostRows = 1'000'000;
constexpr double kMostRatio = 1000;  // of measured over predicted times

// Whether a block mixes tokens in another way than by attention to all that precede, or may have a window.
bool mixes_otherwise(const Block& block) {
  if (const auto* attention = dynamic_cast<const Attention*>(&block)) return attention->options().indexer.has_value();
  if (const auto* latent = dynamic_cast<const LatentAttentionBlock*>(&block)) {
    return latent->options().indexer.has_value();
  }
  return block.mixes();
}

std::string kind_of(const Model& model, const Training& training) {
  if (training.lora_rank > 0) return "adapters";
  if (model.any_block(mixes_otherwise)) return "hybrid";  // scans, compressed or sparse attention
  return model.has_experts() ? "experts" : "dense";
}

DifferenceErrors difference_errors(JsonReader& reader) {
  return {.difference = reader.number("difference", 0, kMostRatio),
          .group = reader.number("between_groups", 0, kMostRatio),
          .own = reader.number("own", 0, kMostRatio)};
}

ErrorClass class_from_json(JsonReader reader) {
  ErrorClass out;
  JsonReader facts = reader.at("class");
  for (const std::string_view key : kKeys) {
    facts.allow(std::string(key));
    if (facts.has(key)) out.facts.emplace_back(key, facts.string(std::string(key)));
  }
  facts.finish();
  out.rows = static_cast<int>(reader.integer("rows", 1, kMostRows));
  out.configurations = static_cast<int>(reader.integer("configurations", 1, kMostRows));
  out.sources = static_cast<int>(reader.integer("sources", 1, kMostRows));
  out.median = reader.number("median", 1 / kMostRatio, kMostRatio);
  out.low = reader.number("low", 1 / kMostRatio, out.median);
  out.high = reader.number("high", out.median, kMostRatio);
  out.differences = difference_errors(reader);
  reader.allow("coverage");
  reader.finish();
  return out;
}

}  // namespace

std::string ErrorClass::name() const {
  std::string out;
  for (const auto& [key, word] : facts) out += (out.empty() ? "" : ", ") + word;
  return out;
}

RunFacts run_facts(const Scenario& scenario) {
  const bool plain = !scenario.correction && !scenario.perturbation.slows() && scenario.perturbation.trials == 0;
  if (!plain || scenario.cost != CostKind::analytic || !scenario.model || !scenario.cluster) return {};
  const Training& training = scenario.training;
  const Cluster& cluster = *scenario.cluster;
  const auto experts = [&]() -> std::string {
    if (!scenario.model->has_experts()) return "";
    const bool within = Placement(training, cluster).expert_group().nodes == 1;
    return within ? "expert groups within a node" : "expert groups across nodes";
  };
  const std::array<std::string, kKeys.size()> words = {
      cluster.gpu.architecture,
      kind_of(*scenario.model, training),
      scenario.software.code_base,
      fmt::format("{}-bit", traits_of(training.precision).bits),
      training.pp > 1 ? "pipeline" : "no pipeline",
      scenario.software.name,
      experts(),
      training.world_size() > cluster.gpus_per_node ? "several nodes" : "one node"};
  RunFacts out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].empty()) out.emplace_back(kKeys[i], words[i]);
  }
  return out;
}

const ErrorClass* ErrorClasses::find(const RunFacts& facts) const {
  const ErrorClass* best = nullptr;
  for (const ErrorClass& each : classes) {
    const bool applies = std::all_of(each.facts.begin(), each.facts.end(), [&](const auto& fact) {
      return std::find(facts.begin(), facts.end(), fact) != facts.end();
    });
    if (applies && (best == nullptr || each.facts.size() > best->facts.size())) best = &each;
  }
  return best;
}

ErrorClasses error_classes_from_json(JsonReader reader) {
  if (reader.string("schema") != "sluice.errors/1") reader.at("schema").fail("expected \"sluice.errors/1\"");
  reader.allow("source");
  ErrorClasses out;
  JsonReader all = reader.at("all");
  out.all = difference_errors(all);
  all.finish();
  for (const JsonReader& each : reader.at("classes").elements()) out.classes.push_back(class_from_json(each));
  reader.finish();
  return out;
}

ErrorClasses catalogue_error_classes() {
  for (const CatalogueFile& file : catalogue_files()) {
    if (file.name != kFile) continue;
    const std::string source = fmt::format("catalogue/{}.json", file.name);
    const Json json = parse_json(file.text, source);
    return error_classes_from_json(JsonReader(json, source));
  }
  throw InputError(fmt::format("the catalogue has no {}", kFile));
}

}  // namespace sluice::model
