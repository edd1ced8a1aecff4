#include "model/scenario/expert_load.h"

#include <fmt/format.h>

namespace sluice::model {
namespace {

constexpr const char* kImbalance = "expert_imbalance";
constexpr const char* kFactor = "moe_expert_capacity_factor";
constexpr const char* kPads = "moe_pad_expert_input_to_capacity";

void check_imbalance(const JsonReader& imbalance, double value, const Transformer& model) {
  if (!model.has_experts()) imbalance.fail("requires a model with experts");
  const double most = largest_imbalance(model.experts, model.experts.count);
  if (value <= most) return;
  imbalance.fail(fmt::format("expected at most {:.4g}, with {} of {} experts per token", most, model.experts.per_token,
                             model.experts.count));
}

// Megatron-LM's other dispatchers drop no tokens.
void check_capacity(const JsonReader& factor, const std::optional<Transformer>& model, const Training& training) {
  if (training.token_dispatcher != Training::TokenDispatcher::all_to_all) {
    factor.fail("requires moe_token_dispatcher alltoall");
  }
  if (model && !model->has_experts()) factor.fail("requires a model with experts");
}

}  // namespace

void read_expert_load(JsonReader& parallelism, const std::optional<Transformer>& model, Training& training) {
  training.expert_imbalance = parallelism.number_or(kImbalance, 1, 1e4, 1);
  if (training.expert_imbalance > 1 && model) {
    check_imbalance(parallelism.at(kImbalance), training.expert_imbalance, *model);
  }
  parallelism.allow(kFactor);
  if (parallelism.has(kFactor)) {
    training.expert_capacity = parallelism.number_or(kFactor, 1e-3, 1e3, 1);
    check_capacity(parallelism.at(kFactor), model, training);
  }
  training.pads_experts = parallelism.boolean_or(kPads, false);
  if (training.pads_experts && training.expert_capacity == 0) {
    parallelism.at(kPads).fail("requires moe_expert_capacity_factor");
  }
}

}  // namespace sluice::model
