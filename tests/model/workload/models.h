#pragma once

#include <string>

#include "model/blocks/layer.h"
#include "model/blocks/model_files.h"
#include "model/blocks/stage.h"
#include "model/errors.h"

namespace sluice::test {

// A file of examples/models/.
inline Transformer example(const std::string& name) {
  return read_model(std::string(SLUICE_SOURCE_DIR "/examples/models/") + name).transformer("a test");
}

// Elements of the matrices of a layer's linear layers, and of its routed experts' parameters.
inline std::int64_t layer_matrix_elements(const Model& model, KindIndex kind = 0) {
  return layer_parameters(model.kind(kind), model.style(), {}).linear;
}
inline std::int64_t routed_expert_parameters(const Model& model) {
  return layer_parameters(model.kind(LayerKind::experts), model.style(), {}).routed;
}

// The message of the InputError that `call` throws.
inline std::string error_of(const auto& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

// GPT-OSS 120B with full attention in all layers and without sinks.
inline Transformer gpt_oss_120b() {
  const std::string text = R"({"num_layers": 36, "hidden_size": 2880, "num_attention_heads": 64, "num_query_groups": 8,
      "kv_channels": 64, "swiglu": true, "ffn_hidden_size": 2880, "vocab_size": 201088, "normalization": "RMSNorm",
      "position_embedding_type": "rope", "untie_embeddings_and_output_weights": true, "hidden_dropout": 0,
      "attention_dropout": 0, "num_experts": 128, "moe_router_topk": 4, "activation_func_clamp_value": 7})";
  return parse_model(text, "gpt-oss-120b.json").transformer("a test");
}

}  // namespace sluice::test
