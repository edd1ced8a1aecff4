#include "model/workload/expert_footprint.h"

namespace sluice::model {

void add_latents(const Transformer& model, const Training& training, std::int64_t rows, LayerBytes& bytes) {
  const LatentAttention& latent = model.latent;
  const std::int64_t normed = rows * (latent.query_rank + latent.key_value_rank);
  const std::int64_t position = rows * latent.rope_head_dim;
  // Projected down on its own shard of the tokens, then all-gathered.
  const std::int64_t split = training.sequence_parallel ? training.tp : 1;
  bytes.to_input_gradient += 2 * (normed / split + position);
  bytes.to_weight_gradient += 2 * normed / split;
  bytes.output_gradients += 2 * (normed / split + position);
}

void add_experts(const Transformer& model, const Training& training, std::int64_t rows, LayerBytes& bytes) {
  const Experts& experts = model.experts;
  const std::int64_t own = (rows + training.tp - 1) / training.tp;
  const std::int64_t sent = own * experts.per_token;
  const std::int64_t routed = own * experts.count;
  const std::int64_t width = sent * experts.ffn_hidden;
  const std::int64_t shared = rows * experts.shared_ffn_hidden / training.tp;
  const std::int64_t inputs = model.mlp_inputs();
  constexpr int kRouterBytes = 2 + 4 + 4 + 1 + 2 * 4;
  bytes.to_input_gradient += 2 * inputs * (width + shared) + kRouterBytes * routed;
  bytes.to_weight_gradient += 2 * (sent * model.hidden + width + shared);
  bytes.output_gradients += 2 * (sent * model.hidden + inputs * (width + shared) + routed);
}

}  // namespace sluice::model
