#include "model/cost/run_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "model/to_size.h"
#include "model/workload/slice_shape.h"

namespace sluice::model {
namespace {

// Linear between measured lengths, and beyond them as in the last segment.
std::int64_t interpolated(const std::vector<std::int64_t>& at, const std::vector<std::int64_t>& bytes,
                          std::int64_t tokens) {
  if (at.size() == 1) return bytes[0] * tokens / at[0];
  const auto above = std::lower_bound(at.begin() + 1, at.end() - 1, tokens);
  const auto right = static_cast<std::size_t>(above - at.begin());
  if (tokens == at[right]) return bytes[right];
  const auto span = static_cast<double>(at[right] - at[right - 1]);
  const double slope = static_cast<double>(bytes[right] - bytes[right - 1]) / span;
  const double value = static_cast<double>(bytes[right - 1]) + slope * static_cast<double>(tokens - at[right - 1]);
  return std::llround(value);
}

// The number of buffers of a rank for outputs: two per rank that it sends to, one per pair of its stages that follow
// each other.
int num_output_buffers(const Schedule& schedule, int rank) {
  std::map<int, std::int64_t> sends;
  int own = 0;
  for (const std::vector<int>& route : schedule.routes()) {
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      if (route[to_size(stage)] != rank) continue;
      for (const int next : {stage - 1, stage + 1}) {
        if (next < 0 || next >= schedule.num_stages()) continue;
        const int peer = route[to_size(next)];
        if (peer != rank) sends[peer] += schedule.total_microbatches();
        if (peer == rank && next > stage) ++own;
      }
    }
  }
  std::int64_t buffers = own;
  for (const auto& [peer, count] : sends) buffers += std::min<std::int64_t>(count, 2);
  return static_cast<int>(buffers);
}

}  // namespace

bool has_run_memory(const CostTable& table, const Model& model, const Training& training) {
  if (table.memory.parts.empty() || model.has_experts() || model.mtp_layers > 0) return false;
  if (training.zero_stage() > 0 || training.cp > 1 || training.recompute == Training::Recompute::selective) {
    return false;
  }
  const bool recompute = training.recompute == Training::Recompute::full;
  return std::any_of(table.memory.parts.begin(), table.memory.parts.end(),
                     [&](const PartMemory& part) { return part.recompute == recompute; });
}

RunFootprint::RunFootprint(RunMemory memory, const Model& model, const Training& training,
                           const std::vector<StageContents>& stages, const Schedule& schedule)
    : memory_(std::move(memory)) {
  const bool recompute = training.recompute == Training::Recompute::full;
  std::erase_if(memory_.parts, [&](const PartMemory& part) {
    return part.recompute != recompute || part.sliced != schedule.sliced();
  });
  for (const StageContents& contents : stages) {
    const std::int64_t parameters = stage_parameters_per_device(model, training.tp, contents);
    StageParts& stage = stages_.emplace_back();
    stage.contents = contents;
    stage.bytes.weights = parameters * memory_.weight_bytes;
    stage.bytes.gradients = stage.bytes.reduced = parameters * memory_.gradient_bytes;
    stage.bytes.optimizer = parameters * memory_.optimizer_bytes;
    if (contents.tied_copy) {
      StageContents without = contents;
      without.tied_copy = false;
      const std::int64_t rest = stage_parameters_per_device(model, training.tp, without);
      tied_embedding_bytes_ = (parameters - rest) * memory_.weight_bytes;
    }
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const int num_buffers = num_output_buffers(schedule, rank);
    for (const int held : schedule.stages_of(rank)) {
      StageParts& stage = stages_[to_size(held)];
      stage.bytes.scratch = std::max(stage.bytes.scratch, scratch(stage.contents, schedule, num_buffers));
    }
  }
}

std::int64_t RunFootprint::of_part(PartKind part, PartMemory::Field field, std::int64_t tokens) const {
  for (const PartMemory& measured : memory_.parts) {
    const std::vector<std::int64_t>& bytes = measured.bytes[static_cast<std::size_t>(field)];
    if (measured.part == part && !bytes.empty()) return interpolated(measured.tokens, bytes, tokens);
  }
  return 0;
}

std::int64_t RunFootprint::of_stage(const StageContents& contents, PartMemory::Field field, std::int64_t tokens) const {
  std::int64_t bytes = of_part(PartKind::stage, field, tokens);
  bytes += contents.layers * of_part(PartKind::layer, field, tokens);
  if (contents.embedding) bytes += of_part(PartKind::embedding, field, tokens);
  if (contents.head) bytes += of_part(PartKind::head, field, tokens);
  return std::max<std::int64_t>(0, bytes);
}

// Of the longest slice, with the ids of its tokens and targets.
std::int64_t RunFootprint::scratch(const StageContents& contents, const Schedule& schedule, int num_buffers) const {
  constexpr std::int64_t kBytesOfIds = 2 * sizeof(std::int32_t);
  std::int64_t most = 0;
  for (const MicrobatchShape& shape : schedule.shapes()) {
    for (const std::int64_t tokens : shape.slice_lengths) {
      most = std::max(most, of_stage(contents, PartMemory::Field::scratch, tokens) +
                                num_buffers * of_stage(contents, PartMemory::Field::boundary, tokens) +
                                kBytesOfIds * shape.sequences * tokens);
    }
  }
  return most;
}

SliceBytes RunFootprint::slice(int stage, const MicrobatchShape& shape, int slice) const {
  using Field = PartMemory::Field;
  const StageContents& contents = stages_[to_size(stage)].contents;
  const std::int64_t tokens = slice_shape(shape, slice).tokens;
  SliceBytes bytes;
  bytes.activations_to_input_gradient = of_stage(contents, Field::to_input_gradient, tokens);
  bytes.activations_to_weight_gradient = of_stage(contents, Field::to_weight_gradient, tokens);
  bytes.gradients_to_weight_gradient = of_stage(contents, Field::output_gradients, tokens);
  if (slice == 0) {
    // One buffer of all slices, with the lifetime of the first slice's.
    bytes.keys_values = of_stage(contents, Field::keys_values, shape.tokens());
    bytes.keys_values_gradient = of_stage(contents, Field::keys_values_gradient, shape.tokens());
  }
  const std::int64_t boundary = of_stage(contents, Field::boundary, tokens);
  bytes.transfer_forward = contents.head ? 0 : boundary;
  bytes.transfer_backward = contents.embedding ? 0 : boundary;
  return bytes;
}

}  // namespace sluice::model
