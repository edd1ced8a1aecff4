#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/workload/transformer.h"

namespace sluice {

// How a transformer is trained: what parameters, activations and time on one device depend on besides its shape.
struct Training {
  // Which activations are computed again before the backward pass instead of being kept.
  enum class Recompute : std::uint8_t {
    none,
    selective,  // the attention core (scores, softmax, dropout); nothing to do with flash attention
    full,       // whole layers, from their inputs
  };

  int tp = 1;
  int dp = 1;
  int pp = 1;
  int micro_batch = 1;  // sequences
  std::int64_t sequence_length = 0;
  bool sequence_parallel = false;  // norms and dropout also split over the tp ranks
  Recompute recompute = Recompute::none;
  bool flash_attention = true;         // the scores are never stored
  bool distributed_optimizer = false;  // optimizer state split over the dp ranks
  bool overlap_grad_reduce = false;    // gradients are reduced while the backward pass still runs
  int gradient_bytes = 4;              // of one gradient element: 2 or 4
  bool scatter_gather = true;          // tp ranks each send 1/tp of a transfer, gathered on arrival (tp > 1)

  std::int64_t world_size() const { return std::int64_t{tp} * dp * pp; }
  // Each tp rank sends its own share of a transfer, not the whole tensor.
  bool splits_transfers() const { return tp > 1 && (sequence_parallel || scatter_gather); }
};

// What of the model one stage holds.
struct StageContents {
  int layers = 0;
  bool embedding = false;
  bool head = false;
  bool tied_copy = false;  // has its own copy of a tied word embedding for the head: the original is on another rank

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

// Throws InputError if the sizes are not positive, gradient_bytes is not 2 or 4, heads, key/value heads or the
// feed-forward size do not divide by tp, or learned positions are fewer than the sequence.
void check_training(const Transformer& model, const Training& training);

// The vocabulary as Megatron-LM pads it: to the next multiple of 128 tp.
std::int64_t padded_vocab(const Transformer& model, int tp);

// Parameters on one device: matrices and column-parallel biases split over tp; norms, row-parallel biases and
// learned positions on every tp rank. Key/value heads fewer than tp are repeated.
std::int64_t layer_parameters_per_device(const Transformer& model, int tp);
std::int64_t stage_parameters_per_device(const Transformer& model, int tp, const StageContents& contents);

}  // namespace sluice
