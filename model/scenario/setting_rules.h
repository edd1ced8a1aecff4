#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "model/blocks/model.h"
#include "model/input/json_reader.h"
#include "model/workload/training.h"

namespace sluice::model {

struct Scenario;

// What settings of a scenario's parallelism require of the model and of each other, once their values are read. Each
// throws InputError at the key.

// How many tokens the experts of a rank get: imbalance, capacity and padding.
void check_expert_load(JsonReader& parallelism, const std::optional<Model>& model, const Training& training);
// Fused experts are grouped, and not split.
void check_fused_experts(JsonReader& parallelism, const std::optional<Model>& model, const Training& training);
// Reads cuda_graph_modules: modules must be the model's, and exclude or require others as in Megatron-LM
// (megatron/core/transformer/transformer_config.py).
void read_graph_modules(JsonReader& parallelism, const std::optional<Model>& model, Training& training);

// Gives the model of a scenario its encoder of images (set_images), and checks where it runs. Throws InputError.
void read_encoder(const nlohmann::json& document, Scenario& scenario);

}  // namespace sluice::model
