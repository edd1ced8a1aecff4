#pragma once

#include <optional>

#include "model/input/json_reader.h"
#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// Reads cuda_graph_impl and cuda_graph_modules of a scenario's parallelism into `training`. Throws InputError for
// modules that the model does not have, or that exclude or require others as in Megatron-LM
// (megatron/core/transformer/transformer_config.py).
void read_graphs(JsonReader& object, const std::optional<Transformer>& model, Training& training);

// Reads fused_grouped_mlp, after moe_grouped_gemm and etp. Throws InputError if there are no experts in grouped GEMMs,
// or they are split.
void read_fused_experts(JsonReader& object, const std::optional<Transformer>& model, Training& training);

}  // namespace sluice::model
