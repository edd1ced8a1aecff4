#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

// A value in the first and in the second run. By convention the first run is the predicted one. Relative differences
// are (second - first) / first: positive if the second run takes longer or uses more.
template <typename T>
struct Both {
  T first{};
  T second{};
};
// Returns (second - first) / first; nullopt if `first` is 0 and `second` is not.
std::optional<double> relative_difference(double first, double second);
std::optional<double> relative_difference(const Both<Duration>& both);

// One rank of one run. Busy time is that of ops, joint blocks, recomputation and optimizer steps; transfers and
// collectives run concurrently.
struct RankSummary {
  Duration busy{};
  Duration first_start{};                  // of ops, joint blocks and recomputation
  Duration last_end{};                     // of ops, joint blocks and recomputation
  double bubble_fraction = 0;              // 1 - busy / makespan
  std::optional<IdleByCause> idle;         // sums to makespan - busy
  std::optional<std::int64_t> peak_bytes;  // peak memory
};

// One run. Fields with the name of a metric of Metrics have the same definition.
struct RunSummary {
  Duration makespan{};         // last end of any row
  Duration span{};             // maximum of last_end - first_start over the ranks
  Duration busy{};             // sum over the ranks
  double bubble_fraction = 0;  // 1 - busy / (ranks * makespan)
  std::int64_t num_rows = 0;
  std::vector<RankSummary> ranks;
};

struct KindComparison {
  RowKind kind = RowKind::F;
  Both<std::int64_t> count;  // collectives count once per participating rank
  Both<Duration> total;
  std::int64_t pairs = 0;  // rows in both runs
  // Median and mean of |second - first| / first, and the signed error of the sums, over the pairs whose first duration
  // is above 1 ns (or neither is). Nullopt without such pairs.
  std::optional<double> median_error;
  std::optional<double> mean_error;
  std::optional<double> total_error;
};

// All parts of layers with experts of one name, such as dispatch(F).
struct PartComparison {
  PassPart part;
  Both<std::int64_t> count;
  Both<Duration> total;
};

// A row that is in both runs.
struct RowPair {
  std::string name;
  int rank = 0;  // in the first run
  Both<Duration> start;
  Both<Duration> duration;
};

struct Unpaired {
  std::int64_t count = 0;
  std::vector<std::string> names;  // of the first ones, by kind, microbatch, stage and slice
};

struct ComparisonOptions {
  std::size_t top = 10;           // number of rows to list: those that differ most, and unpaired ones
  double falls_behind_at = 0.05;  // fraction of the first run's makespan
  std::string first = "first";    // names of the runs
  std::string second = "second";
  bool by_kind = false;  // do not pair rows; for runs of different schedules
};

struct Comparison {
  std::string first;
  std::string second;
  bool by_kind = false;  // rows are not paired; all fields about pairs are empty
  Both<RunSummary> runs;
  std::vector<KindComparison> kinds;  // kinds that occur, in the order of RowKind
  std::vector<PartComparison>
      parts;  // that occur, in the order of a layer, F before B before W; if both runs have parts
  // Fraction of dispatch and combine during which the rank computes; nullopt for a run without them.
  Both<std::optional<double>> hidden;
  std::int64_t pairs = 0;
  Both<Unpaired> unpaired;         // rows that are in one run only
  std::vector<RowPair> differing;  // the pairs whose durations differ most, largest difference first
  // The first row by which the second run falls behind: of the rows that start later in it by more than
  // `falls_behind_at`, the one with the earliest start in the first run.
  std::optional<RowPair> falls_behind;
  double falls_behind_at = 0;

  std::optional<double> makespan_difference() const;
};

// Compares two runs row by row; rows are paired by identity. Order and dependencies are ignored, so that any two runs
// can be compared; runs of different schedules have many unpaired rows. Ranks that are in one run only are idle in the
// other. Throws InputError naming the row if a row occurs twice in one run.
Comparison compare(const RunRows& first, const RunRows& second, const ComparisonOptions& options = {});

// Compares two timelines of one graph, such as a predicted and a measured one. `memory` is by rank, or empty.
struct TimelineSide {
  const Timeline* timeline = nullptr;
  std::span<const RankMemory> memory;
};
Comparison compare(const OpGraph& graph, const TimelineSide& first, const TimelineSide& second,
                   const ComparisonOptions& options = {});

// Describes the first op (F, B, I, W or joint block, in the order of identities) that is in one run only, or on
// different ranks. Returns an empty string if there is none: both runs have the same stages, microbatches, slices and
// placement.
std::string first_difference(const RunRows& first, const RunRows& second, const ComparisonOptions& options = {});

}  // namespace sluice::traces
