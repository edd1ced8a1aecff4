#include "exec/plan/stage_footprint.h"

#include <algorithm>

#include "exec/plan/packing.h"

namespace sluice::exec {

StageFootprint::StageFootprint(std::span<const std::unique_ptr<Stage>> stages)
    : stages_(stages), ranks_(stages.size()) {}

void StageFootprint::set_rank(int stage, int gradient_buffers, std::int64_t scratch_bytes) {
  // Replicas of a stage use the larger value of both.
  OfRank& of = ranks_[stage];
  of.gradient_buffers = std::max(of.gradient_buffers, gradient_buffers);
  of.scratch_bytes = std::max(of.scratch_bytes, scratch_bytes);
}

StageBytes StageFootprint::stage(int stage) const {
  const StageMemory memory = stages_[stage]->memory();
  const OfRank& of = ranks_[stage];
  StageBytes bytes;
  bytes.weights = aligned(memory.weights);
  bytes.gradients = aligned(memory.gradients) * of.gradient_buffers;
  bytes.optimizer = aligned(memory.optimizer_state);
  bytes.reduced = memory.gradients;
  bytes.scratch = of.scratch_bytes;
  return bytes;
}

SliceBytes StageFootprint::slice(int stage, const MicrobatchShape& shape, int slice) const {
  const Stage& of = *stages_[stage];
  const SliceMemory memory = of.slice_memory(slice_shape(shape, slice));
  SliceBytes bytes;
  bytes.activations_to_input_gradient = aligned(memory.to_input_gradient);
  bytes.activations_to_weight_gradient = aligned(memory.to_weight_gradient);
  bytes.gradients_to_weight_gradient = aligned(memory.output_gradients);
  if (slice == 0) {
    // One buffer of all slices, with the lifetime of the first slice's.
    const SliceMemory whole = of.slice_memory({.sequences = shape.sequences, .tokens = shape.tokens()});
    bytes.keys_values = aligned(whole.keys_values);
    if (!shape.forward_only) bytes.keys_values_gradient = aligned(whole.keys_values_gradient);
  }
  bytes.transfer_forward = of.spec().contents.head ? 0 : memory.boundary;
  bytes.transfer_backward = of.spec().contents.embedding ? 0 : memory.boundary;
  return bytes;
}

std::int64_t StageFootprint::tied_embedding_bytes() const {
  for (const auto& stage : stages_) {
    if (!stage->spec().contents.tied_copy) continue;
    for (const Parameter& parameter : stage->parameters()) {
      if (parameter.name == kWordEmbedding) return parameter.size() * stage->element_bytes();
    }
  }
  return 0;
}

}  // namespace sluice::exec
