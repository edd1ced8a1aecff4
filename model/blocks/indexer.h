#pragma once

#include "model/blocks/attention_core.h"

namespace sluice::model {

// The part of sparse attention that chooses: small heads score all earlier tokens, of which each query attends to the
// best ones (DeepSeek-V3.2, arXiv:2512.02556). In training it has a loss of its own, against the attention's weights.
struct Indexer {
  int heads = 0;
  int head_dim = 0;
  int top_k = 0;         // scored keys per query; of blocks of tokens, all of theirs (MiniMax-M3)
  bool own = true;       // false: the indices of an earlier layer are used again (GLM-5.2)
  bool weighted = true;  // each head's scores have a weight per query, from the hidden state
  int pool = 1;          // tokens per key, which are pooled with learned weights (GLM-5.3)
  int ratio = 1;         // tokens per key, which a compressor of its own computes from overlapping groups (DeepSeek-V4)

  // Elements of its weight matrices; its queries are projected from `from` elements per token.
  std::int64_t matrix_elements(std::int64_t hidden, std::int64_t from) const;
  // Also the norm of its keys, and the positions and norm of a compressor.
  std::int64_t parameters(std::int64_t hidden, std::int64_t from) const;
  // FLOPs of the scores of a forward, of one sequence: 2 hi di per pair.
  double flops(double tokens, double context) const;
  // Pairs of a query and a chosen key.
  double chosen(double tokens, double context) const;
  double width() const;

  // Adds its GEMMs, scores and choice in F; in I its loss, for which the attention's scores of the chosen pairs are
  // computed again, and the gradients of its own parameters; in W its weights.
  void add_kernels(const AttentionCore& core, double from, OpKind kind, const BlockCall& call, Kernels& out) const;
  void add_tensors(const TensorCall& call, TensorList& list) const;
};

// Adds the core over chosen keys, as one kernel of `flops`, of the whole model and all sequences, which moves `moved`
// elements on this device.
void add_sparse_core(OpKind kind, const BlockCall& call, double flops, double moved, Kernels& out);

}  // namespace sluice::model
