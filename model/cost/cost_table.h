#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/schedule/op.h"

namespace sluice::model {

// The parts of a model whose times are measured. `stage` is what an op of a whole stage takes beside its parts: what
// the program that runs it does around the kernels. `recompute`, of which there is F alone, is a layer made again
// before its backward: less than its F where what is not read is not made.
enum class PartKind : std::uint8_t { embedding, layer, head, stage, recompute };
inline constexpr std::array kParts = {PartKind::embedding, PartKind::layer, PartKind::head, PartKind::stage,
                                      PartKind::recompute};
std::string to_string(PartKind part);

// Time of one kind of op of one part by the tokens of a slice, i, and of its context, j (Li et al. 2021, TeraPipe,
// eq. 9): t(i, j) = t(i, 0) + t_ctx(i, j). t(i, 0) is measured and linear between measured lengths; below the least it
// is that of the least, a floor; above the greatest it goes on along the last piece, but never falls.
// t_ctx(i, j) = a0 + a1 i + a2 j + a3 i j for j > 0. Never negative.
struct TimeCurve {
  std::vector<std::int64_t> tokens;  // increasing
  std::vector<double> seconds;       // at no context
  std::array<double, 4> context = {0, 0, 0, 0};
  double residual = 0;  // mean relative error of the fit

  double at(std::int64_t slice_tokens, std::int64_t context_tokens) const;
};

// A link as measured.
struct LinkTime {
  std::string name;
  double latency_s = 0;
  double bandwidth_bytes_per_s = 0;
};

// Time of a pass over so many elements: a fixed part, and the rest in proportion.
struct PassTime {
  double fixed_s = 0;
  double elements_per_s = 0;

  double at(double elements) const { return fixed_s + elements / elements_per_s; }
};

// What passes over all parameters of a stage or rank are for.
enum class PassKind : std::uint8_t {
  optimizer,  // its step
  norm,       // the sum of squares of the gradients
};
inline constexpr std::array kPasses = {PassKind::optimizer, PassKind::norm};
std::string to_string(PassKind pass);

// A sum of arrays over so many ranks, all of which have the result.
struct SumTime {
  int ranks = 2;
  double latency_s = 0;
  double bandwidth_bytes_per_s = 0;
};

// A cost file (schema sluice.cost/1, docs/formats.md).
struct CostTable {
  std::string source;  // the file
  std::string machine;
  int sequences = 1;  // that were measured together
  int tensor_parallel = 1;
  std::array<std::array<std::optional<TimeCurve>, 4>, 5> curves;  // by PartKind and OpKind
  std::vector<LinkTime> links;
  std::array<std::optional<PassTime>, 2> passes;  // by PassKind; elements are parameters
  std::vector<SumTime> sums;                      // by rising ranks

  const std::optional<PassTime>& pass(PassKind kind) const { return passes[static_cast<std::size_t>(kind)]; }
  std::optional<PassTime>& pass(PassKind kind) { return passes[static_cast<std::size_t>(kind)]; }
  const std::optional<TimeCurve>& curve(PartKind part, OpKind kind) const {
    return curves[static_cast<std::size_t>(part)][static_cast<std::size_t>(kind)];
  }
  std::optional<TimeCurve>& curve(PartKind part, OpKind kind) {
    return curves[static_cast<std::size_t>(part)][static_cast<std::size_t>(kind)];
  }
};

// Throws InputError naming the file and the place in it.
CostTable read_cost_table(const std::string& path);
CostTable parse_cost_table(std::string_view text, const std::string& source);

// The text of a cost file; parse_cost_table gives the same table back.
std::string to_json_text(const CostTable& table);

}  // namespace sluice::model
