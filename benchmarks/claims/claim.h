#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/input/json_reader.h"

namespace sluice::bench::claims {

// One prediction of a claim: its scenario with changes applied (merge patches, RFC 7386).
struct Run {
  std::string name;
  Json changes = Json::object();
  // One change of each list is applied as well. The run is the fastest of all combinations that fit in memory.
  std::vector<std::vector<Json>> fastest_of;
  // The slices of TeraPipe's optimum, in multiples of this number of tokens, are applied last; 0: those of the
  // scenario.
  std::int64_t cut_granularity = 0;
};

enum class MeasureKind : std::uint8_t {
  speedup,          // of `of` over `over`: tokens, or sequences, per second and device
  speedups,         // likewise for each pair of two lists
  largest_speedup,  // the largest of them
  iteration,        // seconds
  model_tflops,     // per device, without recomputation
  hardware_tflops,  // per device, with recomputation
  petaflops,        // of the cluster, with recomputation
  memory,           // GiB on the rank with the highest memory use
  memory_ratio,     // memory of `of` divided by that of `over`
  fits,             // whether it fits in memory
  order,            // of the runs, ascending by `by`
  best_value,       // of the scenario key `key` in the fastest combination
  days,             // to train on `tokens`
  op_ratio,         // time of one op of `of` divided by that of `over`
  formula_ratio,    // iteration time divided by (m + p - 1)(t_f + t_b) of the slowest stage
  transfer_ratio,   // bytes between ranks per iteration of `of` divided by those of `over`
  transfer_rate,    // GB/s between stages, over all pairs of ranks, directions and replicas
  slices,           // the lengths of the slices
};

struct Range {
  double low = 0;
  double high = 0;  // infinite: at least `low`; `low` minus infinite: at most `high`
};
enum class Trend : std::uint8_t { falls, rises };
using Published = std::variant<std::monostate, double, Range, bool, Trend, std::vector<std::string>,
                               std::vector<std::int64_t>, std::vector<double>>;

struct Op {
  std::string kind = "F";  // or "B"
  int stage = 0;
  int slice = 0;
};

// A quantity of the runs, and its published value.
struct Measure {
  std::string name;
  MeasureKind kind = MeasureKind::speedup;
  std::vector<std::size_t> of, over;  // runs
  std::string by;                     // of order: "time" or "memory"
  std::string key;                    // of best_value: a JSON pointer into the scenario
  double tokens = 0;                  // of days
  Op op;
  Published published;  // nothing if not published or not known
};

// A claim of a paper, its runs and their measures (sluice.claim/1, docs/formats.md).
struct Claim {
  std::string file;
  std::string text;     // the claim as a sentence
  std::string source;   // paper, section, table or figure
  std::string assumed;  // assumptions on what is not published
  std::string why;      // why the predicted value differs
  Json scenario;
  std::vector<Run> runs;
  std::vector<Measure> measures;
};

// Throws InputError `file: place: rule, got value`. Scenarios are parsed when they run.
Claim read_claim(const std::string& path);

std::string_view name_of(MeasureKind kind);

}  // namespace sluice::bench::claims
