#pragma once

#include <optional>

#include "model/blocks/indexer.h"

namespace sluice::model {

// Attention with heads of queries, keys and values projected from the hidden state.
struct AttentionOptions {
  enum class Gate : std::uint8_t {
    none,
    elementwise,  // as wide as the output, projected with the queries (Qwen3-Next)
    per_head,     // one element per head
  };
  enum class QkNorm : std::uint8_t {
    none,
    per_head,   // one norm of d elements for all query heads, one for all key heads (Qwen3)
    all_heads,  // over all heads together (OLMo 2, MiniMax M2)
  };

  AttentionCore core;
  bool qkv_bias = false;
  bool projection_bias = false;
  bool rotary = true;
  QkNorm qk_norm = QkNorm::none;
  Gate gate = Gate::none;
  bool sinks = false;              // one learned logit per head (GPT-OSS)
  bool keys_as_values = false;     // one projection for both (Gemma 4)
  bool shared_keys = false;        // an earlier layer's keys and values are used again (Gemma 4)
  std::optional<Indexer> indexer;  // attention to chosen blocks of tokens (MiniMax-M3)
};

class Attention : public Block {
 public:
  Attention(int hidden, const AttentionOptions& options);

  std::string_view kind() const override { return "attention"; }
  const AttentionOptions& options() const { return options_; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override { return matrix_elements() + index_elements(); }
  std::int64_t matrices_of_each_shape(const Training& training) const override {
    return matrix_elements() / training.tp + index_elements();
  }
  double core_model_flops(std::int64_t tokens) const override;
  double core_flops(std::int64_t tokens, std::int64_t context) const override;
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override;
  void check(const std::string& model, const Training& training) const override;
  int tensor_units() const override { return options_.core.heads; }

 private:
  // Elements of the projections' weights: h (a d + g (d + dv)) + a dv h, and the gate's.
  std::int64_t matrix_elements() const;
  std::int64_t index_elements() const;
  std::int64_t key_width(std::int64_t kv_heads) const;  // of their projections, keys and values together
  double sparse_flops(double tokens, double context) const;
  std::int64_t gate_width() const;  // per token
  double projected(int tp) const;   // elements per token of the first GEMM's result on one device
  void add_attention(OpKind kind, const BlockCall& call, Kernels& out) const;
  void add_forward(const BlockCall& call, Kernels& out) const;
  void add_input_gradient(const BlockCall& call, Kernels& out) const;

  AttentionOptions options_;
};

// Throws InputError if the heads of `core` cannot be divided over tensor- and context-parallel ranks.
void check_core(const AttentionCore& core, const std::string& model, const Training& training);
// Throws InputError if attention of this kind would not be fused, or exchange heads between context-parallel ranks.
void check_fused(std::string_view what, const std::string& model, const Training& training);
// Adds the scores of attention that is not fused: softmax, mask and the output of dropout.
void add_score_tensor(const AttentionCore& core, const TensorCall& call, LayerTensors& out);
// Adds what the core stores besides its inputs: its output in 16 bits, where the projection's input is cast, and that
// of all heads, before it is sent back to the ranks of its tokens.
void add_output_tensors(const AttentionCore& core, const TensorCall& call, TensorList& list);

}  // namespace sluice::model
