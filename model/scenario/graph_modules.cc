#include "model/scenario/graph_modules.h"

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::model {
namespace {

const std::vector<std::string> kGraphImplementations = {"none", "local", "transformer_engine", "full_iteration"};
constexpr GraphModules kPartsOfMoe = GraphModules(GraphModule::moe_router) | GraphModule::moe_preprocess;

GraphModules modules_in(const JsonReader& list, const std::optional<Transformer>& model) {
  const std::vector<std::string>& names = graph_module_names();
  GraphModules out;
  for (const JsonReader& element : list.elements()) {
    const std::string word = element.one_of(names);
    if (word.starts_with("moe") && model && !model->has_experts()) element.fail("requires a model with experts");
    out = out | static_cast<GraphModule>(std::find(names.begin(), names.end(), word) - names.begin());
  }
  if (out.any_of(GraphModule::moe) && out.any_of(kPartsOfMoe)) {
    list.fail("moe excludes its parts moe_router and moe_preprocess");
  }
  if (out.any_of(GraphModule::moe_preprocess) && !out.any_of(GraphModule::moe_router)) {
    list.fail("moe_preprocess requires moe_router");
  }
  return out;
}

}  // namespace

void read_fused_experts(JsonReader& object, const std::optional<Transformer>& model, Training& training) {
  training.fused_grouped_mlp = object.boolean_or("fused_grouped_mlp", false);
  if (!training.fused_grouped_mlp) return;
  const JsonReader fused = object.at("fused_grouped_mlp");
  if (model && !model->has_experts()) fused.fail("requires a model with experts");
  if (!training.grouped_experts) fused.fail("requires moe_grouped_gemm");
  if (training.etp > 1) fused.fail("requires etp 1");
}

void read_graphs(JsonReader& object, const std::optional<Transformer>& model, Training& training) {
  using Implementation = Training::GraphImplementation;
  Implementation& implementation = training.graph_implementation;
  if (object.has("cuda_graph_impl")) {
    const std::string word = object.at("cuda_graph_impl").one_of(kGraphImplementations);
    const auto found = std::find(kGraphImplementations.begin(), kGraphImplementations.end(), word);
    implementation = static_cast<Implementation>(found - kGraphImplementations.begin());
  }
  object.allow("cuda_graph_impl");
  object.allow("cuda_graph_modules");
  const bool by_module =
      implementation == Implementation::local || implementation == Implementation::transformer_engine;
  if (object.has("cuda_graph_modules")) {
    const JsonReader list = object.at("cuda_graph_modules");
    if (!by_module) list.fail("requires cuda_graph_impl local or transformer_engine");
    training.graph_modules = modules_in(list, model);
  } else if (by_module) {
    training.graph_modules = kWholeLayer;
  }
}

}  // namespace sluice::model
