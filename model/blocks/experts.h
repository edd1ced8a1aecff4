#pragma once

#include "model/blocks/kernel_parts.h"
#include "model/workload/transformer.h"

namespace sluice::model {

// Experts, of which a router chooses some per token, and a shared one for every token. In its kernels are the router,
// dispatch and combine, the experts' GEMMs, and the shared expert. Each expert of each rank gets rows x per_token x ep
// / count tokens of its router, those of the busiest rank more (Training::most_expert_rows). Each tensor rank routes
// its own shard of the tokens; a token is copied for each of its experts, sent (all-to-all over the expert-parallel
// group) and ordered by expert, and the same in reverse on the way back. The shared expert is split over the tensor
// ranks like an MLP. Not modeled: the host waits once per layer for the numbers of rows per expert, unless the experts
// are fused. A layer of GELU experts also stores the activation's output before it is multiplied with the router's
// probabilities, which fused SwiGLU kernels compute again.
class ExpertsBlock : public Block {
 public:
  struct Options {
    Experts experts;
    bool gated = false;
    bool bias = false;
    int latent = 0;  // where not 0: tokens are projected down to this width for their experts (Nemotron 3)
    bool latent_norm = false;
    bool router_bias = false;   // trained, one element per expert (GPT-OSS, Gemma 4)
    bool router_scale = false;  // trained, one element per channel of its input (Gemma 4)
    int zero_experts = 0;       // that the router may choose and that compute nothing (LongCat)
    bool dropout = false;

    int routes() const { return experts.count + zero_experts; }  // of the router
  };
  ExpertsBlock(int hidden, const Options& options) : Block(hidden, options.dropout), options_(options) {}

  std::string_view kind() const override { return "experts"; }
  bool mixes() const override { return false; }
  const Options& options() const { return options_; }
  BlockParameters parameters(const Shards& shards) const override;
  std::int64_t active_matrix_elements() const override;
  std::int64_t idle_parameters() const override;
  std::int64_t matrices_of_each_shape(const Training& training) const override;
  void add_kernels(OpKind kind, const BlockCall& call, Kernels& out) const override;
  void add_tensors(const TensorCall& call, LayerTensors& out) const override;
  double width() const override;
  void check(const std::string& model, const Training& training) const override;

 private:
  int inputs() const { return options_.gated ? 2 : 1; }
  int channels() const { return options_.latent > 0 ? options_.latent : hidden(); }  // of a token for its experts
  std::int64_t elements(std::int64_t width, std::int64_t channels) const { return (inputs() + 1) * width * channels; }
  std::int64_t expert_parameters() const;
  std::int64_t latent_elements() const { return std::int64_t{2} * hidden() * options_.latent; }

  Options options_;
};

}  // namespace sluice::model
