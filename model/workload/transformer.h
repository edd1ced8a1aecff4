#pragma once

#include <cstdint>
#include <string>

namespace sluice {

class JsonReader;

// The shape of a decoder-only transformer: all that parameters, FLOPs and memory follow from.
// Symbols of the comments below: h hidden, a heads, g kv_heads, d head_dim, f ffn_hidden, V vocab, l layers.
struct Transformer {
  std::string name;
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;  // = heads unless grouped-query
  int head_dim = 0;
  int ffn_hidden = 0;
  bool gated = false;  // the MLP has three matrices (SwiGLU) instead of two
  std::int64_t vocab = 0;
  int positions = 0;            // learned position embeddings; 0: rotary or none
  bool tied_embeddings = true;  // the head is the word embedding
  bool rms_norm = false;        // norms have a gain and no bias
  bool qkv_bias = true;
  bool projection_bias = true;  // of attention's output projection
  bool mlp_bias = true;
  bool dropout = true;    // in training: after attention, after the MLP, on the embedding, on attention weights
  int max_positions = 0;  // longest sequence the model is meant for; 0: not known

  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }             // a d
  std::int64_t key_value_width() const { return std::int64_t{2} * kv_heads * head_dim; }  // 2 g d, K and V together
  int mlp_inputs() const { return gated ? 2 : 1; }                                        // matrices into ffn_hidden
};

// Elements of one layer's weight matrices: h (a d + 2 g d) + a d h + (2 or 3) h f. GPT: 12 h^2.
std::int64_t layer_matrix_elements(const Transformer& model);

// Parameters of one layer: matrices, biases and the two norms. GPT: 12 h^2 + 13 h.
std::int64_t layer_parameters(const Transformer& model);

// Parameters of the word embedding and learned positions.
std::int64_t embedding_parameters(const Transformer& model);

// Parameters of what follows the last layer: the final norm, and the head where it is not the word embedding.
std::int64_t head_parameters(const Transformer& model);

// All parameters, a tied embedding counted once. Narayanan et al. 2021 (SC'21) eq. 2 leaves out the final norm.
std::int64_t parameters(const Transformer& model);

// Model FLOPs of one sequence of `tokens`, forward, a multiply-add counted as two and attention as the full
// square, as papers count for TFLOP/s and MFU. GPT layer: 24 s h^2 + 4 s^2 h; head: 2 s h V (SC'21, appendix).
double layer_model_flops(const Transformer& model, std::int64_t tokens);
double head_model_flops(const Transformer& model, std::int64_t tokens);

// Model FLOPs of an iteration over `sequences`: forward and twice as much backward; `full_recompute` adds
// another forward of the layers. With it, for GPT: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) (SC'21, eq. 3).
double iteration_model_flops(const Transformer& model, std::int64_t tokens, std::int64_t sequences,
                             bool full_recompute);

// Executed FLOPs of one layer on one slice of one sequence: `tokens` after `context` earlier ones, with causal
// attention. The work of all slices of a sequence adds up exactly to that of the whole.
struct SliceFlops {
  double matrices = 0;   // of the GEMMs with weights: 2 n (matrix elements)
  double attention = 0;  // scores and attention over values: 4 a d n (c + n/2)

  double forward() const { return matrices + attention; }
  double input_gradient() const { return matrices + 2 * attention; }
  double weight_gradient() const { return matrices; }
  double backward() const { return input_gradient() + weight_gradient(); }
};
SliceFlops layer_slice_flops(const Transformer& model, std::int64_t tokens, std::int64_t context);

// Throws InputError "<name>: ..." if a size is not positive, heads are no multiple of kv_heads, or there are more than
// 10^14 parameters.
void check_transformer(const Transformer& model);

// Reads a Hugging Face config.json of model_type gpt2, llama, mistral or qwen2. Keys that do not matter here are
// ignored. Throws InputError naming the file and the key.
Transformer read_hf_config(const std::string& path);
Transformer transformer_from_hf(JsonReader reader);

// Reads an object with Megatron-LM's names: num_layers, hidden_size, num_attention_heads, vocab_size and
// optionally ffn_hidden_size (4h; required with swiglu), num_query_groups, kv_channels, swiglu,
// max_position_embeddings, position_embedding_type, untie_embeddings_and_output_weights, normalization,
// disable_bias_linear, add_qkv_bias, hidden_dropout, attention_dropout. Unknown keys are errors.
Transformer transformer_from_json(JsonReader reader);

// A model file of either kind: Hugging Face's if it has a model_type, else Megatron-LM's.
Transformer read_model(const std::string& path);

}  // namespace sluice
