// Public header.
#pragma once

#include <boost/container/static_vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "model/blocks/model.h"
#include "model/workload/training.h"

namespace sluice::model {

// Distributes the layers over `num_stages` stages; the first has the embedding and the last the head, with a tied copy
// unless there is only one stage (clear it where a placement has both on one rank). `explicit_layers`, if not empty,
// has the number of layers of each stage. Otherwise `first_layers` and `last_layers` set those of the outer stages (0:
// not set; Megatron's decoder-first- and decoder-last-pipeline-num-layers) and the other layers are distributed evenly;
// the remainder goes to stages away from the outer ones, which have embedding and head. Throws InputError if there are
// more stages than layers, or the numbers do not add up to the model's. Layers of multi-token prediction are on stage
// `mtp_stage` (kLastStage: the last), after which no stage may have other layers, or, with the losses, where
// `predictions` has them for each stage, if not empty.
std::vector<StageContents> split_layers(const Model& model, int num_stages, std::span<const int> explicit_layers,
                                        int first_layers, int last_layers, int mtp_stage = kLastStage,
                                        std::span<const Predictions> predictions = {});

// Number of hidden states whose loss a stage computes, and that are sent from stage `stage` to the next one (-1: that
// arrive at the first one).
int losses_of(const Model& model, const StageContents& contents);
int hidden_states_after(const Model& model, std::span<const StageContents> stages, int stage);

// Returns the contents of a stage with `layers` layers from `first` on, and nothing else.
StageContents layers_from(const Model& model, int first, int layers);

// Numbers of layers of a stage by kind, in the order of the model's kinds, without those that it has none of.
struct KindCount {
  int kind = 0;
  int layers = 0;
};
using KindCounts = boost::container::static_vector<KindCount, kMostKinds + 1>;
KindCounts layers_by_kind(const Model& model, const StageContents& contents);

// Returns the layers of a stage that are recomputed from their inputs: the leading ones, as specified by training, and
// those of multi-token prediction if it specifies all (as in Megatron-LM).
StageContents recomputed_layers(const Model& model, const Training& training, const StageContents& contents);

// Returns the units of a stage whose parameters are gathered and whose gradients are reduced together: embedding, each
// layer, by kind, and head (as FSDP wraps a transformer).
std::vector<StageContents> sharded_units(const Model& model, const StageContents& contents);

// Throws InputError "/parallelism/KEY: ..." if gradient_bytes is not 2 or 4, dp_shard does not divide dp, tensor,
// context or expert parallelism does not divide a block, or learned positions are fewer than the sequence. ep etp must
// divide tp cp dp, and with tp > 1 experts need sequence parallelism (as in Megatron-LM). Context parallelism needs
// fused attention and a sequence length divisible by 2 cp. Sizes must be positive; this error has no key.
void check_training(const Model& model, const Training& training);

inline std::int64_t padded_vocab(const Model& model, int tp) { return padded_vocab(model.vocab, tp); }

// Returns the parameters on one device: matrices and column-parallel biases are split over tp; norms, row-parallel
// biases, projections down to latents, routers and learned positions are replicated on every tp rank. Key/value heads
// fewer than tp are repeated. Routed experts are split over `expert_ranks`.
std::int64_t stage_parameters_per_device(const Model& model, int tp, const StageContents& contents,
                                         int expert_ranks = 1);
// The elements of linear layers among these, whose GEMMs have the training's precision.
std::int64_t stage_linear_parameters_per_device(const Model& model, int tp, const StageContents& contents,
                                                int expert_ranks = 1);
// The routed experts' part of these.
// The parameters among them that are trained, and those of them that are routed experts': all, or the adapters of LoRA,
// none of which counts as an expert's.
std::int64_t trained_parameters_per_device(const Model& model, const Training& training, const StageContents& contents);
std::int64_t trained_expert_parameters_per_device(const Model& model, const Training& training,
                                                  const StageContents& contents);
std::int64_t stage_expert_parameters_per_device(const Model& model, const StageContents& contents, int expert_ranks);
// Of one layer.
std::int64_t layer_parameters_per_device(const Model& model, int tp, KindIndex kind = 0, int expert_ranks = 1);
// Elements of one matrix of each shape that a stage has on a device.
std::int64_t stage_matrices_of_each_shape(const Model& model, const Training& training, const StageContents& contents);

// Returns the bytes of a stage's parameters as they are gathered: narrow ones with one scale per tensor as they are,
// others in 16 bits.
std::int64_t gathered_parameter_bytes(const Model& model, const Training& training, const StageContents& contents);

}  // namespace sluice::model
