#include "exec/measure/profile_memory.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include "kernels/stage.h"

namespace sluice::exec {
namespace {

using BytesByField = std::array<std::int64_t, PartMemory::kFields.size()>;

std::unique_ptr<Stage> stage_with(const ProfilingSpec& spec, const StageContents& contents, bool sliced,
                                  bool recompute) {
  StageSpec of{.model = spec.model,
               .contents = contents,
               .tensor_parallel = spec.tensor_parallel,
               .recompute = recompute,
               .sliced = sliced,
               .attention = spec.attention};
  of.model.layers = std::max(spec.model.layers, contents.layers);
  return spec.kernels != nullptr ? spec.kernels->make_stage(of, spec.precision) : make_cpu_stage(of, spec.precision);
}

BytesByField bytes_of_slice(const ProfilingSpec& spec, const Stage& stage, std::int64_t tokens) {
  const SliceShape shape{.sequences = spec.sequences, .tokens = tokens};
  const SliceMemory memory = stage.slice_memory(shape);
  return {memory.to_input_gradient,    memory.to_weight_gradient, memory.output_gradients,   memory.keys_values,
          memory.keys_values_gradient, memory.boundary,           stage.scratch_bytes(shape)};
}

// Returns the bytes that `with` has and `without` does not have, as a part of a stage.
PartMemory part_of(PartKind kind, const ProfilingSpec& spec, const std::set<std::int64_t>& lengths, const Stage& with,
                   const Stage& without) {
  PartMemory part{.part = kind, .sliced = with.spec().sliced, .recompute = with.spec().recompute};
  for (const std::int64_t tokens : lengths) {
    part.tokens.push_back(tokens);
    const BytesByField bytes = bytes_of_slice(spec, with, tokens);
    const BytesByField rest = bytes_of_slice(spec, without, tokens);
    for (std::size_t field = 0; field < bytes.size(); ++field) part.bytes[field].push_back(bytes[field] - rest[field]);
  }
  return part;
}

// Returns what a stage with one layer has besides the layer.
PartMemory rest_of(const PartMemory& layer, const ProfilingSpec& spec, const Stage& with_one) {
  PartMemory part = layer;
  part.part = PartKind::stage;
  for (std::size_t i = 0; i < part.tokens.size(); ++i) {
    const BytesByField bytes = bytes_of_slice(spec, with_one, part.tokens[i]);
    for (std::size_t field = 0; field < bytes.size(); ++field) {
      part.bytes[field][i] = bytes[field] - layer.bytes[field][i];
    }
  }
  return part;
}

void add_part(PartMemory part, RunMemory& memory) {
  for (std::vector<std::int64_t>& bytes : part.bytes) {
    if (std::all_of(bytes.begin(), bytes.end(), [](std::int64_t of_slice) { return of_slice == 0; })) bytes.clear();
  }
  memory.parts.push_back(std::move(part));
}

}  // namespace

RunMemory memory_of_parts(const ProfilingSpec& spec) {
  RunMemory memory;
  if (spec.model.has_experts()) return memory;
  std::set<std::int64_t> lengths = {spec.sequence_length};
  for (const ProfileCell& cell : spec.cells) lengths.insert(cell.tokens);
  for (const bool sliced : {false, true}) {
    for (const bool recompute : {false, true}) {
      const auto stage = [&](StageContents contents) { return stage_with(spec, contents, sliced, recompute); };
      const auto one = stage({.layers = 1});
      const auto two = stage({.layers = 2});
      const auto embedding = stage({.layers = 1, .embedding = true});
      const auto head = stage({.layers = 1, .head = true, .tied_copy = spec.model.tied_embeddings});
      const PartMemory layer = part_of(PartKind::layer, spec, lengths, *two, *one);
      add_part(part_of(PartKind::embedding, spec, lengths, *embedding, *one), memory);
      add_part(layer, memory);
      add_part(part_of(PartKind::head, spec, lengths, *head, *one), memory);
      add_part(rest_of(layer, spec, *one), memory);
      const StageMemory whole = one->memory();
      memory.weight_bytes = one->element_bytes();
      const std::int64_t elements = whole.weights / memory.weight_bytes;
      memory.gradient_bytes = whole.gradients / elements;
      memory.optimizer_bytes = whole.optimizer_state / elements;
    }
  }
  return memory;
}

}  // namespace sluice::exec
