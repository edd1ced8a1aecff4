#include "model/scenario/setting_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/blocks/encoder.h"
#include "model/errors.h"
#include "model/scenario/scenario.h"

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

void read_encoder(const nlohmann::json& document, Scenario& scenario) {
  const EncoderChoices& encoder = scenario.encoder;
  const auto require = [&](bool there, const char* rule) {
    if (!there) throw InputError(fmt::format("{}: {}", scenario.source, rule));
  };
  const std::string images = document.value(nlohmann::json::json_pointer("/batch/images"), std::string());
  const bool given = !images.empty() && images != "none";
  const bool modeled = scenario.model.has_value();
  require(modeled || !given, "/batch/images: requires a model (--model)");
  require(!modeled || given || !(encoder.frozen || encoder.apart() || encoder.tp > 0),
          "/batch/images: required by the settings of the encoder");
  require(modeled || !encoder.frozen || encoder.apart(),
          "/batch/freeze_encoder: requires a model with images, or stages of the encoder (--encoder-placement)");
  require(encoder.tp == 0 || modeled, "/parallelism/encoder_tp: requires a model (--model)");
  const bool alone = encoder.placement == EncoderPlacement::own_ranks;
  require(alone || encoder.pp == 1, "/parallelism/encoder_pp: requires encoder_placement own-ranks");
  require(alone || encoder.dp == 1, "/parallelism/encoder_dp: requires encoder_placement own-ranks");
  if (modeled) set_images(*scenario.model, images, encoder.frozen, scenario.source + ": /batch/images", encoder.tp);
}

}  // namespace sluice::model
