#pragma once

#include <optional>
#include <string_view>

#include "model/blocks/indexer.h"
#include "model/workload/transformer.h"

namespace sluice::model {

struct LatentAttentionOptions {
  int heads = 0;
  LatentAttention latent;
  bool dropout = false;
  bool rotary = true;
  bool gate = false;  // of the output, elementwise (Kimi K3)
  std::optional<Indexer> indexer;
};

// Multi-head latent attention. Its projections go down to the latents of queries and of keys and values (every tensor
// rank on its own shard of the tokens under sequence parallelism), their norms, up to this device's heads, and copies
// join each head's two parts. Tensor-parallel traffic: under sequence parallelism the latents are all-gathered in F and
// their gradients reduce-scattered in I; otherwise the gradients are all-reduced in I. With an indexer the core
// computes in the latents' space, where all heads share one key and value per token. Prefill (forwards alone) keeps
// latents instead of keys and values, as inference engines do.
class LatentAttentionBlock : public Block {
 public:
  LatentAttentionBlock(int hidden, const LatentAttentionOptions& options);

  std::string_view kind() const override { return "latent_attention"; }
  const LatentAttentionOptions& options() const { return options_; }
  const AttentionCore& core() const { return core_; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override { return matrix_elements(1) + indexer_matrix_elements(); }
  std::int64_t matrices_of_each_shape(const Training& training) const override {
    return matrix_elements(1) / training.tp + indexer_matrix_elements();
  }
  double core_model_flops(std::int64_t tokens) const override;
  double core_flops(std::int64_t tokens, std::int64_t context) const override;
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override;
  void check(const std::string& model, const Training& training) const override;
  int tensor_units() const override { return options_.heads; }

 private:
  struct LatentSizes;
  // Elements of the weights of a rank: projections to and from heads are of its own ones.
  std::int64_t matrix_elements(int tp) const;
  std::int64_t indexer_matrix_elements() const;
  // What queries, also the indexer's, are projected up from.
  std::int64_t query_source() const { return options_.latent.query_rank > 0 ? options_.latent.query_rank : hidden(); }
  // Of the selected pairs of `tokens` queries after `context` tokens of a sequence.
  double sparse_flops(double tokens, double context) const;
  LatentSizes sizes(const Training& training) const;
  void add_attention(OpKind kind, const BlockCall& call, Kernels& out) const;
  void add_prefix(const BlockCall& call, const LatentSizes& sizes, Kernels& out) const;
  void add_forward(const BlockCall& call, Kernels& out) const;
  void add_input_gradient(const BlockCall& call, Kernels& out) const;
  void add_weight_gradient(const BlockCall& call, Kernels& out) const;
  void add_joined_heads(std::string_view name, const BlockCall& call, const LatentSizes& l, Kernels& out) const;

  LatentAttentionOptions options_;
  AttentionCore core_;
};

}  // namespace sluice::model
