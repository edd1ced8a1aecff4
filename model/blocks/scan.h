#pragma once

#include <numeric>

#include "model/blocks/kernel_parts.h"

namespace sluice::model {

// A recurrent mixer: each head has a matrix as its state, which every token decays and adds to, and which it reads. It
// is computed in chunks. Its work per token does not depend on the tokens before, and what a slice hands to the next
// one are the states and the last rows of the convolution.
class Scan : public Block {
 public:
  enum class Rule : std::uint8_t {
    mamba2,       // a decay per head (Mamba-2, arXiv:2405.21060)
    lightning,    // a fixed decay per head, without a convolution (MiniMax-01, arXiv:2501.08313)
    gated_delta,  // also takes out what the state has for a key (Gated DeltaNet, arXiv:2412.06464)
    kimi_delta,   // the same with a decay per channel (Kimi Linear, arXiv:2510.26692)
    convolution,  // no state: a convolution of a few tokens between two gates, with a head per element (LFM2)
  };

  struct Options {
    Rule rule = Rule::mamba2;
    int heads = 0;           // of values
    int head_dim = 0;        // of values
    int state = 0;           // of keys and queries: rows of a head's state
    int groups = 0;          // of keys and queries
    int convolution = 0;     // its length, in tokens
    int chunk = 0;           // tokens that are computed together
    bool norm = true;        // mamba2: the gated output is normed (Falcon-H1: not)
    bool full_gate = false;  // kimi_delta: the output's gate has one full matrix instead of two of low rank (Kimi K3)
    bool dropout = false;
  };

  Scan(int hidden, const Options& options) : Block(hidden, options.dropout), options_(options) {}

  std::string_view kind() const override;
  const Options& options() const { return options_; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override { return matrix_elements(1); }
  std::int64_t matrices_of_each_shape(const Training& training) const override { return matrix_elements(training.tp); }
  // Megatron-LM counts 7 T 2h N for Mamba-2, and 8 T d^2 per head for the delta rules.
  double core_model_flops(std::int64_t tokens) const override;
  // With chunks of C tokens: T H (4 N P + 2 C P) + 2 T C G N; delta T H (6 N P + 2 C (3 N + 2 P) + 2 C^2 / 3).
  double core_flops(std::int64_t tokens, std::int64_t context) const override;
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override;
  void check(const std::string& model, const Training& training) const override;
  int tensor_units() const override { return std::gcd(options_.heads, options_.groups); }

 private:
  // Elements per token.
  std::int64_t inner() const { return std::int64_t{options_.heads} * options_.head_dim; }  // of its output
  std::int64_t keys() const { return std::int64_t{options_.groups} * options_.state; }
  std::int64_t convolved() const;  // of what the convolution reads
  std::int64_t projected() const;  // of the results of its first GEMMs, which tensor parallelism splits
  std::int64_t scalars() const;    // of the decays and write strengths of all heads
  std::int64_t low_rank() const;   // of the inputs of gates of low rank, which it does not split
  std::int64_t matrix_elements(int tp) const;
  double flops_per_token() const;
  bool scans() const { return options_.rule != Rule::convolution; }
  double rate() const;  // of a multiprocessor in its scan, FLOP/s
  KernelCall convolution(std::string_view name, int times, int tensors, double elements) const;
  bool delta() const { return options_.rule == Rule::gated_delta || options_.rule == Rule::kimi_delta; }
  void add_forward(const BlockCall& call, Kernels& out) const;
  void add_input_gradient(const BlockCall& call, Kernels& out) const;
  void add_exchange(std::string_view name, const BlockCall& call, double elements, Kernels& out) const;

  Options options_;
};

}  // namespace sluice::model
