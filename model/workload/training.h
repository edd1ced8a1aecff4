// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/workload/transformer.h"

namespace sluice::model {

// How a transformer is trained: what parameters, activations and time on one device depend on besides its shape.
struct Training {
  // Which activations are computed again before the backward pass instead of being kept.
  enum class Recompute : std::uint8_t {
    none,
    selective,  // the attention core (scores, softmax, dropout); nothing to do with flash attention
    full,       // whole layers, from their inputs
  };

  // How context-parallel ranks get to see each other's keys and values.
  enum class ContextExchange : std::uint8_t {
    ring,        // they go round, a rank's worth a step, behind the attention over those that have come (p2p)
    all_to_all,  // for attention the heads are split instead of the sequence (Jacobs et al. 2023)
  };

  int tp = 1;
  int cp = 1;  // the tokens of a sequence are split over so many ranks, each with two of 2 cp chunks, so that all have
               // the same causal work
  int dp = 1;
  int pp = 1;
  int ep = 1;  // experts are split over so many of the tp cp dp ranks that hold a stage, each expert whole on its rank
  int micro_batch = 1;  // sequences
  std::int64_t sequence_length = 0;
  bool sequence_parallel = false;  // norms and dropout also split over the tp ranks
  Recompute recompute = Recompute::none;
  int recompute_layers = 0;            // of full recomputation: of each stage's first layers so many; 0: all
  bool flash_attention = true;         // the scores are never stored
  bool distributed_optimizer = false;  // optimizer state split over the dp ranks
  bool overlap_grad_reduce = false;    // gradients are reduced while the backward pass still runs
  int gradient_bytes = 4;              // of one gradient element: 2 or 4
  bool scatter_gather = true;          // tp ranks each send 1/tp of a transfer, gathered on arrival (tp > 1)
  bool fused_cross_entropy = false;    // softmax and its gradient are written over the 16-bit logits
  // Layers of Transformer Engine: where gradients are accumulated inside the product, it keeps a 16-bit tensor of each
  // weight's shape to hand to autograd in place of the gradient (transformer_engine/pytorch/utils, get_dummy_wgrad).
  bool transformer_engine = false;
  ContextExchange context_exchange = ContextExchange::ring;
  // World ranks in the order tensor, context, pipeline, data instead of tensor, context, data, pipeline, so that the
  // stages of a replica are near each other (Megatron-LM's use-tp-pp-dp-mapping).
  bool pipeline_before_data = false;

  std::int64_t world_size() const { return std::int64_t{tp} * cp * dp * pp; }
  // Ranks that hold the same parameters, and sum their gradients: of experts, and of everything else.
  int data_ranks() const { return cp * dp; }
  int expert_data_ranks() const { return tp * cp * dp / ep; }
  // Each tp rank sends its own share of a transfer, not the whole tensor.
  bool splits_transfers() const { return tp > 1 && (sequence_parallel || scatter_gather); }
};

// What of the model one stage holds.
struct StageContents {
  int layers = 0;
  int expert_layers = 0;  // of these, the last so many have experts
  bool embedding = false;
  bool head = false;
  bool tied_copy = false;  // has its own copy of a tied word embedding for the head: the original is on another rank

  std::array<std::pair<LayerKind, int>, 2> by_kind() const {
    return {{{LayerKind::dense, layers - expert_layers}, {LayerKind::experts, expert_layers}}};
  }
  friend bool operator==(const StageContents&, const StageContents&) = default;
};

// The layers of each of `num_stages` stages; the first has the embedding and the last the head, with a tied copy
// unless they are one stage (clear it where a placement puts both on one rank).
// `explicit_layers`, if any, gives the layers of each stage. Otherwise `first_layers` and `last_layers` fix those of
// the outer stages (0: not fixed; Megatron's decoder-first- and decoder-last-pipeline-num-layers) and the rest is
// dealt evenly; what is left over goes to stages away from the outer ones, which carry embedding and head.
// Throws InputError if there are more stages than layers, or the counts do not add up to the model's.
std::vector<StageContents> split_layers(const Transformer& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers);

// The layers of a stage that are computed again from their inputs: the first of them, as many as training says.
StageContents recomputed_layers(const Training& training, const StageContents& contents);

// Throws InputError if the sizes are not positive, gradient_bytes is not 2 or 4, heads, key/value heads or a
// feed-forward size that tensor parallelism splits do not divide by tp, or learned positions are fewer than the
// sequence. Experts must divide by ep, which must divide tp cp dp, and with tp > 1 they need sequence parallelism (as
// Megatron-LM has it). Context parallelism needs fused attention and a sequence of whole chunks, 2 cp of them; with
// all_to_all the heads of each tensor rank, of queries and of keys and values, must divide by cp.
void check_training(const Transformer& model, const Training& training);

// The vocabulary as Megatron-LM pads it: to the next multiple of 128 tp.
std::int64_t padded_vocab(const Transformer& model, int tp);

// Parameters on one device: matrices and column-parallel biases split over tp; norms, row-parallel biases, projections
// down to latents, routers and learned positions on every tp rank. Key/value heads fewer than tp are repeated. Routed
// experts are split over ep.
std::int64_t layer_parameters_per_device(const Transformer& model, int tp, LayerKind kind = LayerKind::dense,
                                         int ep = 1);
std::int64_t stage_parameters_per_device(const Transformer& model, int tp, const StageContents& contents, int ep = 1);
// Those of them that are routed experts'.
std::int64_t stage_expert_parameters_per_device(const Transformer& model, const StageContents& contents, int ep);

}  // namespace sluice::model
