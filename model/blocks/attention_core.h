#pragma once

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// The part of attention between its projections: scores of queries and keys, softmax, and sums of values.
struct AttentionCore {
  int heads = 0;     // of queries
  int kv_heads = 0;  // of keys and values
  int head_dim = 0;  // of queries and keys
  int value_head_dim = 0;
  bool dropout = false;
  // Where not 0: a query attends to this number of keys, the last one its own (sliding window).
  int window = 0;
  // Where not 0: a query attends to the keys of its own chunk of this number of tokens (Llama 4).
  int chunk = 0;

  // Elements per token of all heads.
  std::int64_t query_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t value_width() const { return std::int64_t{heads} * value_head_dim; }
  std::int64_t key_value_width() const { return std::int64_t{kv_heads} * (head_dim + value_head_dim); }
  // The same on one of `tp` devices: key and value heads fewer than tp are repeated.
  double queries(int tp) const { return static_cast<double>(query_width()) / tp; }
  double output(int tp) const { return static_cast<double>(value_width()) / tp; }
  double keys_values(int tp) const { return static_cast<double>(heads_of_keys(tp)) * (head_dim + value_head_dim); }
  int heads_of_keys(int tp) const { return kv_heads > tp ? kv_heads / tp : 1; }

  // Pairs of a query and a key that it attends to, of `tokens` queries after `context` tokens: c + 1/2 to c + n - 1/2
  // each without a window.
  double pairs(double tokens, double context) const;
  // Keys that the last of `keys` tokens attends to, and those that any of these queries does.
  double reach(double keys) const;
  double keys_read(double tokens, double context) const;
  // FLOPs of a forward, of one sequence: 2 a (d + dv) per pair.
  double flops(double tokens, double context) const {
    return 2 * static_cast<double>(query_width() + value_width()) * pairs(tokens, context);
  }
  // By the convention of papers: the full square, or with a window twice its pairs.
  double model_flops(double tokens) const;
};

// Adds the kernels of the core, F or I, and the exchanges of context parallelism. Fused, it computes half of the new
// square and, in I, the scores a second time: the forward has two GEMMs, the backward five. Unfused, it computes the
// full rectangle and moves the scores through memory. With context parallelism the 2 cp chunks of a sequence are
// distributed so that every rank has the same part of the causal half square.
//   ring        cp kernels, each on one rank's keys and values, while the next ones are exchanged: what the attention
//               kernels hide of the exchange costs nothing; cp - 1 times the outputs are rescaled and added
//   all-to-all  one kernel on whole sequences and 1/cp of the heads; queries, keys, values and outputs are exchanged
//               before and after, with two copies each to reorder chunks and heads
// Where values have a smaller head than keys and the GPU's constants have padded_values, the forward kernel's tiles are
// as wide as the keys', and the backward kernel's as the next power of two: with heads of 192 and 128 on a B200 (16 to
// 128 of them, 4,096 tokens) the prediction is 11 % below to 33 % above the measured forward, and 4 % below to 9 %
// above the backward; for the forward of longer sequences up to 36 % below (MooreThreads/SimuMax
// configs/system/b200_bf16_ceperm.json, Apache-2.0).
void add_core(const AttentionCore& core, OpKind kind, const BlockCall& call, Kernels& out);

}  // namespace sluice::model
