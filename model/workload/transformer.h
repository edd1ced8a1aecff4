// Public header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/namespaces.h"

namespace sluice::model {

class JsonReader;

// The MLP of a layer: dense, or experts between which a router chooses per token.
enum class LayerKind : std::uint8_t { dense, experts };

// The experts of a mixture's layers. All experts of a layer have the same size and gating as the dense MLP.
struct Experts {
  int count = 0;              // per layer; 0: no mixture of experts
  int per_token = 0;          // number of experts per token
  int ffn_hidden = 0;         // per expert
  int shared_ffn_hidden = 0;  // of the MLP beside them for every token (all shared experts together)
  bool shared_gate = false;   // a gate of h elements scales its output (Qwen2)
  double clamp = 0;           // the inputs of the activation are clamped to this (GPT-OSS); 0: they are not
  int leading_dense = 0;      // number of leading layers with a dense MLP of Transformer::ffn_hidden instead
  // Routing limited to groups: the experts of a token are of `groups_per_token` of `groups` equal groups (DeepSeek-V3).
  int groups = 1;
  int groups_per_token = 1;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1): queries, keys and values are projected up from
// latents, with a norm of each latent; `rope` elements of each key are the same for all heads.
struct LatentAttention {
  int query_rank = 0;      // of the queries' latent; 0: queries are projected directly from the hidden state
  int key_value_rank = 0;  // 0: ordinary attention
  int nope_head_dim = 0;   // of a query or key, without positional encoding
  int rope_head_dim = 0;   // of a query or key, with rotary embedding
  int value_head_dim = 0;
};

// The shape of a decoder-only transformer, which determines parameters, FLOPs and memory. Symbols of the comments
// below: h hidden, a heads, g kv_heads, d head_dim, f ffn_hidden, V vocab, l layers.
struct Transformer {
  std::string name;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;    // equal to heads unless grouped-query
  int head_dim = 0;    // of queries and keys; in latent attention its nope and rope parts together
  int ffn_hidden = 0;  // of a dense layer
  bool gated = false;  // the MLP has three matrices (SwiGLU) instead of two
  std::int64_t vocab = 0;
  int positions = 0;            // learned position embeddings; 0: rotary or none
  bool tied_embeddings = true;  // the head is the word embedding
  bool rms_norm = false;        // norms have a gain and no bias
  bool qkv_bias = true;
  bool projection_bias = true;  // of attention's output projection
  bool mlp_bias = true;
  bool dropout = true;    // during training: after attention, after the MLP, on the embedding, on attention weights
  int max_positions = 0;  // maximum sequence length of the model; 0: unknown
  bool qk_norm = false;   // a norm of d elements on every query and key head (Qwen3); for latent attention see there
  // Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, 2.2): each of these layers predicts one more token. It norms
  // the hidden state and the embedding of the next token, projects both from 2h to h, and has a transformer layer of
  // the model's last kind. Embedding and head are the model's.
  int mtp_layers = 0;
  Experts experts;
  LatentAttention latent;

  bool has_experts() const { return experts.count > 0; }
  bool has_latent_attention() const { return latent.key_value_rank > 0; }
  int dense_layers() const { return has_experts() ? experts.leading_dense : layers; }
  LayerKind layer_kind(int layer) const { return layer < dense_layers() ? LayerKind::dense : LayerKind::experts; }
  LayerKind last_kind() const { return layer_kind(layers - 1); }
  int value_head_dim() const { return has_latent_attention() ? latent.value_head_dim : head_dim; }
  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }  // a d
  std::int64_t value_width() const {
    return std::int64_t{heads} * value_head_dim();
  }  // a d, the width of attention's output
  // 2 g d: the keys and values that attention reads, together.
  std::int64_t key_value_width() const { return std::int64_t{kv_heads} * (head_dim + value_head_dim()); }
  int mlp_inputs() const { return gated ? 2 : 1; }  // matrices into ffn_hidden
};

// Returns the largest possible ratio of the busiest of `ranks` ranks to the mean: all tokens go to as many of its
// experts as they can. It is `ranks`, or less where a rank has fewer experts than a token goes to; 1 without experts.
double largest_imbalance(const Experts& experts, int ranks);

// Throws InputError "<name>: ..." if a size is not positive, heads are not a multiple of kv_heads, a token has more
// experts than there are, there are more leading dense layers than layers, or more than 10^14 parameters.
void check_transformer(const Transformer& model);

// The model types of Hugging Face that are transformers.
const std::vector<std::string>& transformer_types();

// Reads a Hugging Face config.json of model_type gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe,
// deepseek_v2 or deepseek_v3. Irrelevant keys are ignored. Throws InputError naming the source and the key.
Transformer transformer_from_hf(JsonReader reader);

// Reads an object with Megatron-LM's names: num_layers, hidden_size, num_attention_heads, vocab_size and
// optionally ffn_hidden_size (4h; required with swiglu), num_query_groups, kv_channels, swiglu,
// max_position_embeddings, position_embedding_type, untie_embeddings_and_output_weights, normalization,
// disable_bias_linear, add_qkv_bias, qk_layernorm, hidden_dropout, attention_dropout, mtp_num_layers; of experts
// num_experts,
// moe_router_topk (2), moe_ffn_hidden_size (ffn_hidden_size), moe_shared_expert_intermediate_size,
// moe_shared_expert_gate, moe_layer_freq (1, or a list of 0 for each leading dense layer and then 1); of latent
// attention multi_latent_attention, q_lora_rank, kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim, v_head_dim. Unknown
// keys are errors.
Transformer transformer_from_json(JsonReader reader);

}  // namespace sluice::model
