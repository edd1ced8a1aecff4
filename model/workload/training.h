// Public header.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/workload/transformer.h"

namespace sluice::model {

// The training configuration of a transformer: everything besides its shape that determines parameters, activations and
// time on one device.
struct Training {
  // The activations that are recomputed before the backward pass instead of being stored.
  enum class Recompute : std::uint8_t {
    none,
    selective,  // the attention core (scores, softmax, dropout); no effect with flash attention
    full,       // whole layers, from their inputs
  };

  // How context-parallel ranks exchange keys and values.
  enum class ContextExchange : std::uint8_t {
    ring,        // around a ring, one rank's per step, overlapped with attention over those received before (p2p)
    all_to_all,  // for attention the heads are split instead of the sequence (Jacobs et al. 2023)
  };

  // The communication of each half of a joint block that overlaps with the other half's kernels.
  enum class JointOverlap : std::uint8_t {
    none,
    experts,  // dispatch and combine, as DualPipe and Megatron-LM's combined 1F1B do
    all,      // also the collectives of tensor and context parallelism, which no framework does
  };

  int tp = 1;
  int cp = 1;  // number of ranks over which the tokens of a sequence are split, each with two of 2 cp chunks, so that
               // all have the same causal work
  int dp = 1;
  int pp = 1;
  int ep = 1;           // number of ranks, of the tp cp dp ranks of a stage, over which whole experts are distributed
  int micro_batch = 1;  // sequences
  std::int64_t sequence_length = 0;
  bool sequence_parallel = false;  // norms and dropout also split over the tp ranks
  Recompute recompute = Recompute::none;
  int recompute_layers = 0;     // with full recomputation: number of leading layers recomputed per stage (0 = all)
  bool flash_attention = true;  // the scores are never stored
  bool distributed_optimizer = false;  // optimizer state split over the dp ranks
  bool overlap_grad_reduce = false;    // gradients are reduced during the backward pass
  int gradient_bytes = 4;              // of a gradient element: 2 or 4
  bool scatter_gather = true;          // each tp rank sends 1/tp of a transfer, all-gathered on arrival (tp > 1)
  bool fused_cross_entropy = false;    // softmax and its gradient overwrite the 16-bit logits
  // Transformer Engine's layers: where gradients are accumulated within the GEMM, a 16-bit tensor of each weight's
  // shape is kept to return to autograd in place of the gradient (transformer_engine/pytorch/utils, get_dummy_wgrad).
  bool transformer_engine = false;
  ContextExchange context_exchange = ContextExchange::ring;
  JointOverlap joint_overlap = JointOverlap::experts;
  // World ranks in the order tensor, context, pipeline, data instead of tensor, context, data, pipeline, so that the
  // stages of a replica are close to each other (Megatron-LM's use-tp-pp-dp-mapping).
  bool pipeline_before_data = false;

  std::int64_t world_size() const { return std::int64_t{tp} * cp * dp * pp; }
  // Number of ranks that have the same parameters and all-reduce their gradients: of experts, and of everything else.
  int data_ranks() const { return cp * dp; }
  int expert_data_ranks() const { return tp * cp * dp / ep; }
  // Whether each tp rank sends its own shard of a transfer instead of the whole tensor.
  bool splits_transfers() const { return tp > 1 && (sequence_parallel || scatter_gather); }
};

// The part of the model on one stage.
struct StageContents {
  int layers = 0;
  int expert_layers = 0;  // number of them, the last ones, with experts
  bool embedding = false;
  bool head = false;
  bool tied_copy = false;  // the head has its own copy of a tied word embedding, since the original is on another rank

  std::array<std::pair<LayerKind, int>, 2> by_kind() const {
    return {{{LayerKind::dense, layers - expert_layers}, {LayerKind::experts, expert_layers}}};
  }
  friend bool operator==(const StageContents&, const StageContents&) = default;
};

// Distributes the layers over `num_stages` stages; the first has the embedding and the last the head, with a tied copy
// unless there is only one stage (clear it where a placement has both on one rank). `explicit_layers`, if not empty,
// has the number of layers of each stage. Otherwise `first_layers` and `last_layers` set those of the outer stages (0:
// not set; Megatron's decoder-first- and decoder-last-pipeline-num-layers) and the other layers are distributed evenly;
// the remainder goes to stages away from the outer ones, which have embedding and head. Throws InputError if there are
// more stages than layers, or the numbers do not add up to the model's.
std::vector<StageContents> split_layers(const Transformer& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers);

// Returns the layers of a stage that are recomputed from their inputs: the leading ones, as specified by training.
StageContents recomputed_layers(const Training& training, const StageContents& contents);

// Throws InputError if sizes are not positive, gradient_bytes is not 2 or 4, heads, key/value heads or a feed-forward
// size that tensor parallelism splits are not divisible by tp, or learned positions are fewer than the sequence. The
// number of experts must be divisible by ep, which must divide tp cp dp, and with tp > 1 they need sequence parallelism
// (as in Megatron-LM). Context parallelism needs fused attention and a sequence length divisible by 2 cp; with
// all_to_all the heads of each tensor rank, of queries and of keys and values, must be divisible by cp.
void check_training(const Transformer& model, const Training& training);

// Returns the vocabulary size as padded by Megatron-LM: to the next multiple of 128 tp.
std::int64_t padded_vocab(const Transformer& model, int tp);

// Returns the parameters on one device: matrices and column-parallel biases are split over tp; norms, row-parallel
// biases, projections down to latents, routers and learned positions are replicated on every tp rank. Key/value heads
// fewer than tp are repeated. Routed experts are split over ep.
std::int64_t layer_parameters_per_device(const Transformer& model, int tp, LayerKind kind = LayerKind::dense,
                                         int ep = 1);
std::int64_t stage_parameters_per_device(const Transformer& model, int tp, const StageContents& contents, int ep = 1);
// The routed experts' part of these.
std::int64_t stage_expert_parameters_per_device(const Transformer& model, const StageContents& contents, int ep);

}  // namespace sluice::model
