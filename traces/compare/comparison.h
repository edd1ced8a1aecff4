#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

// A value of the first and of the second run. By convention the first is the predicted one, so that relative
// differences are (second - first) / first: above 0 where the second run took longer, or held more.
template <typename T>
struct Both {
  T first{};
  T second{};
};
// (second - first) / first; none where `first` is 0 and `second` is not.
std::optional<double> relative_difference(double first, double second);
std::optional<double> relative_difference(const Both<Duration>& both);

// One rank in one run. Busy: ops, joint blocks, recomputation and optimizer steps; transfers and collectives run
// beside.
struct RankSummary {
  Duration busy{};
  Duration first_start{};                  // of an op, joint block or recomputation
  Duration last_end{};                     // of the same
  double bubble_fraction = 0;              // 1 - busy / makespan
  std::optional<IdleByCause> idle;         // adds up to makespan - busy
  std::optional<std::int64_t> peak_bytes;  // of memory
};

// One run; what has the name of a figure of Metrics is the same.
struct RunSummary {
  Duration makespan{};         // last end of all rows
  Duration span{};             // largest last_end - first_start of a rank
  Duration busy{};             // sum over the ranks
  double bubble_fraction = 0;  // 1 - busy / (ranks * makespan)
  std::int64_t num_rows = 0;
  std::vector<RankSummary> ranks;
};

struct KindComparison {
  RowKind kind = RowKind::F;
  Both<std::int64_t> count;  // collectives: once for each rank that takes part
  Both<Duration> total;
  std::int64_t pairs = 0;  // rows that both runs have
  // Of pairs whose first lasts longer than 1 ns (or both do not): |second - first| / first of each, and of their sums
  // with its sign. None where there is no such pair.
  std::optional<double> median_error;
  std::optional<double> mean_error;
  std::optional<double> total_error;
};

// One row in both runs.
struct RowPair {
  std::string name;
  int rank = 0;  // in the first run
  Both<Duration> start;
  Both<Duration> duration;
};

struct Unpaired {
  std::int64_t count = 0;
  std::vector<std::string> names;  // of the first of them, by kind, microbatch, stage and slice
};

struct ComparisonOptions {
  std::size_t top = 10;           // rows to name: those that differ most, and those without a partner
  double falls_behind_at = 0.05;  // of the first run's makespan
  std::string first = "first";    // what the runs are called
  std::string second = "second";
  bool by_kind = false;  // pair no rows: for runs of different schedules
};

struct Comparison {
  std::string first;
  std::string second;
  bool by_kind = false;  // no rows are paired: what is said of pairs is empty
  Both<RunSummary> runs;
  std::vector<KindComparison> kinds;  // those that occur, in the order of RowKind
  std::int64_t pairs = 0;
  Both<Unpaired> unpaired;         // rows that only the one run has
  std::vector<RowPair> differing;  // of all pairs those whose durations differ most, the largest difference first
  // Where the second run falls behind first: of the rows that start later in it by more than `falls_behind_at`, the one
  // that starts first in the first run.
  std::optional<RowPair> falls_behind;
  double falls_behind_at = 0;

  std::optional<double> makespan_difference() const;
};

// Compares two runs row by row, paired by identity. Neither order nor dependences matter, so that any two may be
// compared; where they are not of one schedule, many rows have no partner. Ranks that only one run has count as empty
// in the other. Throws InputError naming the row if one run has it twice.
Comparison compare(const RunRows& first, const RunRows& second, const ComparisonOptions& options = {});

// The same of two timelines of one graph, such as a predicted and a measured one. `memory` is by rank, or empty.
struct TimelineSide {
  const Timeline* timeline = nullptr;
  std::span<const RankMemory> memory;
};
Comparison compare(const OpGraph& graph, const TimelineSide& first, const TimelineSide& second,
                   const ComparisonOptions& options = {});

// The first op (F, B, I, W or joint block, in the order of identities) that only one of the runs has, or that they have
// on different ranks, in words: two runs without such an op are of one set of stages, microbatches and slices on one
// placement. Empty if there is none.
std::string first_difference(const RunRows& first, const RunRows& second, const ComparisonOptions& options = {});

}  // namespace sluice::traces
