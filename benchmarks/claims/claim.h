#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/input/json_reader.h"

namespace sluice::bench::claims {

// One prediction of a claim: its scenario with changes laid over it (merge patches, RFC 7386).
struct Run {
  std::string name;
  Json changes = Json::object();
  // One of each list is laid over it as well. Of all combinations the fastest that fits in memory is the run.
  std::vector<std::vector<Json>> fastest_of;
  // Slices of TeraPipe's optimum, in multiples of so many tokens, are laid over it last; 0: as the scenario cuts.
  std::int64_t cut_granularity = 0;
};

enum class MeasureKind : std::uint8_t {
  speedup,          // of `of` over `over`: tokens, or sequences, a second and device
  speedups,         // the same for each of two lists, in order
  largest_speedup,  // of them
  iteration,        // seconds
  model_tflops,     // a device, as papers count without recomputation
  hardware_tflops,  // a device, with it
  petaflops,        // of the cluster, with recomputation
  memory,           // GiB of the rank that needs most
  memory_ratio,     // of that, `of` to `over`
  fits,             // in memory
  order,            // of the runs, by `by`, least first
  best_value,       // of the scenario key `key`, in the combination that was fastest
  days,             // to train on `tokens`
  op_ratio,         // time of one op of `of` to the same of `over`
  formula_ratio,    // iteration to (m + p - 1)(t_f + t_b) of the slowest stage
  transfer_ratio,   // bytes between ranks in an iteration, `of` to `over`
  transfer_rate,    // GB/s between stages, over all pairs of ranks, directions and replicas
  slices,           // the lengths a cut has
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

// What is taken of the runs, and what the paper says it is.
struct Measure {
  std::string name;
  MeasureKind kind = MeasureKind::speedup;
  std::vector<std::size_t> of, over;  // runs
  std::string by;                     // of order: "time" or "memory"
  std::string key;                    // of best_value: a JSON pointer into the scenario
  double tokens = 0;                  // of days
  Op op;
  Published published;  // nothing: the paper does not say, or we do not know
};

// A claim of a paper, the runs that speak to it and what is measured of them (sluice.claim/1, docs/formats.md).
struct Claim {
  std::string file;
  std::string text;     // in words
  std::string source;   // paper, section, table or figure
  std::string assumed;  // what the paper leaves open
  std::string why;      // ours is another figure
  Json scenario;
  std::vector<Run> runs;
  std::vector<Measure> measures;
};

// Throws InputError `file: place: rule, got value`. Scenarios are read when they are run.
Claim read_claim(const std::string& path);

std::string_view name_of(MeasureKind kind);

}  // namespace sluice::bench::claims
