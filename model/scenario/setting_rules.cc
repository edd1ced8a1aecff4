#include "model/scenario/setting_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::model {
namespace {

void check_imbalance(const JsonReader& imbalance, double value, const Model& model) {
  if (!model.has_experts()) imbalance.fail("requires a model with experts");
  const double most = largest_imbalance(model.experts, model.experts.count);
  if (value <= most) return;
  imbalance.fail(fmt::format("expected at most {:.4g}, with {} of {} experts per token", most, model.experts.per_token,
                             model.experts.count));
}

// Megatron-LM's other dispatchers drop no tokens.
void check_capacity(const JsonReader& factor, const std::optional<Model>& model, const Training& training) {
  if (training.token_dispatcher != Training::TokenDispatcher::all_to_all) {
    factor.fail("requires moe_token_dispatcher alltoall");
  }
  if (model && !model->has_experts()) factor.fail("requires a model with experts");
}

constexpr GraphModules kPartsOfMoe = GraphModules(GraphModule::moe_router) | GraphModule::moe_preprocess;

GraphModules modules_in(const JsonReader& list, const std::optional<Model>& model) {
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

void check_expert_load(JsonReader& parallelism, const std::optional<Model>& model, const Training& training) {
  if (training.expert_imbalance > 1 && model) {
    check_imbalance(parallelism.at("expert_imbalance"), training.expert_imbalance, *model);
  }
  if (training.expert_capacity > 0) check_capacity(parallelism.at("moe_expert_capacity_factor"), model, training);
  if (training.pads_experts && training.expert_capacity == 0) {
    parallelism.at("moe_pad_expert_input_to_capacity").fail("requires moe_expert_capacity_factor");
  }
}

void check_fused_experts(JsonReader& parallelism, const std::optional<Model>& model, const Training& training) {
  if (!training.fused_grouped_mlp) return;
  const JsonReader fused = parallelism.at("fused_grouped_mlp");
  if (model && !model->has_experts()) fused.fail("requires a model with experts");
  if (!training.grouped_experts) fused.fail("requires moe_grouped_gemm");
  if (training.etp > 1) fused.fail("requires etp 1");
}

void read_graph_modules(JsonReader& parallelism, const std::optional<Model>& model, Training& training) {
  using enum Training::GraphImplementation;
  const bool by_module = training.graph_implementation == local || training.graph_implementation == transformer_engine;
  if (parallelism.has("cuda_graph_modules")) {
    const JsonReader list = parallelism.at("cuda_graph_modules");
    if (!by_module) list.fail("requires cuda_graph_impl local or transformer_engine");
    training.graph_modules = modules_in(list, model);
  } else if (by_module) {
    training.graph_modules = kWholeLayer;
  }
}

}  // namespace sluice::model
