#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/cost/model_shape.h"
#include "model/schedule/op.h"
#include "model/workload/layer_part.h"
#include "model/workload/slice_shape.h"

namespace sluice::model {

// The parts of a model whose times are measured. `stage` is the time of a whole stage's op in addition to its parts:
// what the framework does around the kernels. `recompute`, which has only F, is the recomputation of a layer before its
// backward; it is shorter than the layer's F where outputs that are not read are not computed. `layer` and `recompute`
// are of dense layers; a layer with experts consists of the last four parts (LayerPart).
enum class PartKind : std::uint8_t { embedding, layer, head, stage, recompute, attention, dispatch, experts, combine };
inline constexpr std::array kParts = {PartKind::embedding, PartKind::layer,     PartKind::head,
                                      PartKind::stage,     PartKind::recompute, PartKind::attention,
                                      PartKind::dispatch,  PartKind::experts,   PartKind::combine};
inline constexpr std::array kExpertLayerParts = {PartKind::attention, PartKind::dispatch, PartKind::experts,
                                                 PartKind::combine};
std::string to_string(PartKind part);
constexpr bool is_of_expert_layer(PartKind part) { return part >= PartKind::attention; }
constexpr PartKind part_kind(LayerPart part) { return kExpertLayerParts.at(static_cast<std::size_t>(part)); }
// Returns the kinds of op that a profile or cost file may have of a part: of a layer with experts F, I and, where there
// are weights, W, of which B is the sum.
std::span<const OpKind> kinds_of(PartKind part);

// Time of one kind of op of one part, as a function of the tokens of a slice, i, and of its context, j (Li et al. 2021,
// TeraPipe, eq. 9): t(i, j) = t(i, 0) + t_ctx(i, j). t(i, 0) is measured, and linear between measured lengths; it is
// constant below the smallest length, and beyond the largest it continues the last segment without ever decreasing.
// t_ctx(i, j) = a0 + a1 i + a2 j + a3 i j for j > 0. Never negative.
struct TimeCurve {
  std::vector<std::int64_t> tokens;  // increasing
  std::vector<double> seconds;       // without context
  std::array<double, 4> context = {0, 0, 0, 0};
  double residual = 0;  // mean relative error of the fit

  double at(std::int64_t slice_tokens, std::int64_t context_tokens) const;
  // Of packed documents without the attention between them: a3 seconds for every pair of a token and one before it.
  double at(const SliceShape& slice) const;
};

// A measured link.
struct LinkTime {
  std::string name;
  double latency_s = 0;
  double bandwidth_bytes_per_s = 0;
};

// Time of a pass over a number of elements: a fixed part and a proportional one.
struct PassTime {
  double fixed_s = 0;
  double elements_per_s = 0;

  double at(double elements) const { return fixed_s + elements / elements_per_s; }
};

// Passes over all parameters of a stage or rank.
enum class PassKind : std::uint8_t {
  optimizer,  // the optimizer step
  norm,       // the norm of the gradients
};
inline constexpr std::array kPasses = {PassKind::optimizer, PassKind::norm};
std::string to_string(PassKind pass);

// Time of an all-reduce over this number of ranks.
struct SumTime {
  int ranks = 2;
  double latency_s = 0;
  double bandwidth_bytes_per_s = 0;
};

// Bytes that the executor lays out for one part of a stage, per slice of a microbatch, by the tokens of a sequence in
// the slice. Part `stage`: what every stage has, whatever its parts.
struct PartMemory {
  enum class Field : std::uint8_t {
    to_input_gradient,   // activations from F until B or I ends
    to_weight_gradient,  // activations from F until B or W ends
    output_gradients,    // from I until W ends
    keys_values,         // of a whole sequence
    keys_values_gradient,
    boundary,  // what a stage receives or sends
    scratch,   // used by the ops of all slices, one after the other
  };
  static constexpr std::array<const char*, 7> kFields = {
      "to_input_gradient",    "to_weight_gradient", "output_gradients", "keys_values",
      "keys_values_gradient", "boundary",           "scratch"};

  PartKind part = PartKind::layer;
  bool sliced = false;  // of a sequence that is cut into slices
  bool recompute = false;
  std::vector<std::int64_t> tokens;                                  // increasing
  std::array<std::vector<std::int64_t>, kFields.size()> bytes = {};  // by Field and tokens; empty: none

  friend bool operator==(const PartMemory&, const PartMemory&) = default;
};

// The memory of the executor that measured a profile. No parts: unknown.
struct RunMemory {
  std::int64_t weight_bytes = 0;  // per parameter
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;
  std::vector<PartMemory> parts;

  friend bool operator==(const RunMemory&, const RunMemory&) = default;
};

// The contents of a cost file (schema sluice.cost/1, docs/formats.md).
struct CostTable {
  std::string source;  // the file's path
  std::string machine;
  ModelShape shape;               // of the measured model; unknown sizes are absent
  bool waited_for_cores = false;  // as in the profile
  int sequences = 1;              // sequences per microbatch in the measurements
  int tensor_parallel = 1;
  int expert_parallel = 1;                                                    // of layers with experts
  std::array<std::array<std::optional<TimeCurve>, 4>, kParts.size()> curves;  // by PartKind and OpKind
  std::vector<LinkTime> links;
  std::array<std::optional<PassTime>, 2> passes;  // by PassKind; elements are parameters
  std::vector<SumTime> sums;                      // by ascending number of ranks
  RunMemory memory;                               // of the executor

  const std::optional<PassTime>& pass(PassKind kind) const { return passes[static_cast<std::size_t>(kind)]; }
  std::optional<PassTime>& pass(PassKind kind) { return passes[static_cast<std::size_t>(kind)]; }
  const std::optional<TimeCurve>& curve(PartKind part, OpKind kind) const {
    return curves[static_cast<std::size_t>(part)][static_cast<std::size_t>(kind)];
  }
  std::optional<TimeCurve>& curve(PartKind part, OpKind kind) {
    return curves[static_cast<std::size_t>(part)][static_cast<std::size_t>(kind)];
  }
};

// Throws InputError naming the file and the location in it.
CostTable read_cost_table(const std::string& path);
CostTable parse_cost_table(std::string_view text, const std::string& source);

// Returns the text of a cost file, which parse_cost_table parses back to the same table.
std::string to_json_text(const CostTable& table);

}  // namespace sluice::model
