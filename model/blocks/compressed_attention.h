#pragma once

#include <optional>

#include "model/blocks/indexer.h"

namespace sluice::model {

struct CompressedAttentionOptions {
  int heads = 0;
  int head_dim = 0;    // of the queries, and of the one head that is both key and value
  int query_rank = 0;  // of the latent of the queries
  int out_groups = 0;  // groups of heads, of which each is projected down to
  int out_rank = 0;    // this many elements before all are projected to the hidden size
  int window = 0;      // tokens that are attended to one by one
  int ratio = 0;       // tokens per compressed entry; 0: the window alone
  bool dropout = false;
  std::optional<Indexer> indexer;  // chooses among the entries; without it all are attended to
};

// Attention over a window and compressed entries of all earlier tokens (DeepSeek-V4). An entry is a weighted sum of the
// keys of its `ratio` tokens, with an indexer also of those of the group before. Sharded like latent attention: every
// tensor rank projects its own shard of the tokens down, latents are gathered, and heads and output groups are split.
class CompressedAttention : public Block {
 public:
  CompressedAttention(int hidden, const CompressedAttentionOptions& options);

  std::string_view kind() const override { return "compressed_attention"; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override { return matrix_elements(1) + index_elements(); }
  std::int64_t matrices_of_each_shape(const Training& training) const override {
    return matrix_elements(training.tp) + index_elements();
  }
  double core_model_flops(std::int64_t tokens) const override { return core_flops(tokens, 0); }
  // 4 a d per pair of a query and a token of its window, or an entry.
  double core_flops(std::int64_t tokens, std::int64_t context) const override;
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override;
  void check(const std::string& model, const Training& training) const override;
  int tensor_units() const override { return options_.out_groups; }

 private:
  std::int64_t compressor_width() const;  // keys and gates per token
  std::int64_t down() const;  // what a token is projected down to: its queries' latent, key and compressor's
  std::int64_t queries() const { return std::int64_t{options_.heads} * options_.head_dim; }
  std::int64_t narrow_output() const { return std::int64_t{options_.out_groups} * options_.out_rank; }
  std::int64_t matrix_elements(int tp) const;  // without the indexer's
  std::int64_t index_elements() const;
  double sparse_flops(double tokens, double context) const;
  void add_core(OpKind kind, const BlockCall& call, Kernels& out) const;
  void add_forward(const BlockCall& call, Kernels& out) const;
  void add_input_gradient(const BlockCall& call, Kernels& out) const;

  CompressedAttentionOptions options_;
  AttentionCore core_;
};

}  // namespace sluice::model
