#include "traces/compare/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "model/errors.h"
#include "model/median.h"
#include "model/to_size.h"

namespace sluice::traces {
namespace {

// The duration of an instantaneous transfer in traces.
constexpr Duration kInstant{1};

// The rows of a run, sorted by identity.
class Sorted {
 public:
  Sorted(const RunRows& run, const std::string& name) : run_(run) {
    entries_.reserve(run.rows.size());
    for (std::size_t i = 0; i < run.rows.size(); ++i) entries_.push_back({identity_of(run.rows[i]), i});
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.identity < b.identity; });
    const auto twice = std::adjacent_find(entries_.begin(), entries_.end(),
                                          [](const Entry& a, const Entry& b) { return a.identity == b.identity; });
    if (twice != entries_.end()) {
      throw InputError(fmt::format("{}: {} occurs twice", name, name_of(run.rows[twice->row], run.sliced)));
    }
  }

  std::size_t size() const { return entries_.size(); }
  const RowIdentity& identity(std::size_t i) const { return entries_[i].identity; }
  const OpRow& row(std::size_t i) const { return run_.rows[entries_[i].row]; }
  std::string name(std::size_t i) const { return name_of(row(i), run_.sliced); }

 private:
  struct Entry {
    RowIdentity identity;
    std::size_t row;
  };
  const RunRows& run_;
  std::vector<Entry> entries_;
};

// Merges two sorted runs: calls on_pair(i, j), on_first(i) or on_second(j) per row, until one returns false.
template <typename OnPair, typename OnFirst, typename OnSecond>
void walk(const Sorted& first, const Sorted& second, OnPair&& on_pair, OnFirst&& on_first, OnSecond&& on_second) {
  std::size_t i = 0;
  std::size_t j = 0;
  bool going = true;
  while (going && (i < first.size() || j < second.size())) {
    if (j == second.size() || (i < first.size() && first.identity(i) < second.identity(j))) {
      going = on_first(i++);
    } else if (i == first.size() || second.identity(j) < first.identity(i)) {
      going = on_second(j++);
    } else {
      going = on_pair(i++, j++);
    }
  }
}

RunSummary summary_of(const RunRows& run, int num_ranks) {
  RunSummary summary{.num_rows = std::ssize(run.rows)};
  summary.ranks.resize(num_ranks);
  std::vector<char> seen(to_size(num_ranks), 0);
  for (const OpRow& row : run.rows) {
    summary.makespan = std::max(summary.makespan, row.end);
    if (!occupies_rank(row.kind)) continue;
    RankSummary& rank = summary.ranks[row.rank];
    rank.busy += row.end - row.start;
    if (row.kind == RowKind::optimizer) continue;
    rank.first_start = seen[row.rank] == 0 ? row.start : std::min(rank.first_start, row.start);
    rank.last_end = std::max(rank.last_end, row.end);
    seen[row.rank] = 1;
  }
  const auto makespan = static_cast<double>(summary.makespan.count());
  for (std::size_t r = 0; r < summary.ranks.size(); ++r) {
    RankSummary& rank = summary.ranks[r];
    summary.busy += rank.busy;
    summary.span = std::max(summary.span, rank.last_end - rank.first_start);
    if (makespan > 0) rank.bubble_fraction = 1 - static_cast<double>(rank.busy.count()) / makespan;
    if (r < run.idle.size()) rank.idle = run.idle[r];
    if (r < run.memory.size()) rank.peak_bytes = run.memory[r].peak_bytes;
  }
  if (makespan > 0 && run.num_ranks > 0) {
    summary.bubble_fraction = 1 - static_cast<double>(summary.busy.count()) / (makespan * run.num_ranks);
  }
  return summary;
}

// Accumulates the errors of the pairs of one kind.
struct KindErrors {
  std::vector<double> errors;
  Both<Duration> sum;

  void add(Duration first, Duration second) {
    const bool instant = first <= kInstant && second <= kInstant;
    if (first <= kInstant && !instant) return;
    const double difference = static_cast<double>((second - first).count());
    errors.push_back(instant ? 0.0 : std::abs(difference) / static_cast<double>(first.count()));
    sum.first += first;
    sum.second += second;
  }

  void finish(KindComparison& kind) {
    if (errors.empty()) return;
    kind.mean_error = std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
    kind.median_error = median(errors);
    kind.total_error = relative_difference(sum);
  }
};

// The pairs whose durations differ most, as a heap with the smallest difference at the front.
class Differing {
 public:
  explicit Differing(std::size_t most) : most_(most) {}

  void add(std::size_t first, std::size_t second, Duration difference) {
    if (difference == Duration::zero() || most_ == 0) return;
    const Entry entry{difference, first, second};
    if (entries_.size() == most_ && !more(entry, entries_.front())) return;
    if (entries_.size() == most_) {
      std::pop_heap(entries_.begin(), entries_.end(), more);
      entries_.pop_back();
    }
    entries_.push_back(entry);
    std::push_heap(entries_.begin(), entries_.end(), more);
  }

  struct Entry {
    Duration difference{};
    std::size_t first = 0;
    std::size_t second = 0;
  };
  std::vector<Entry> take() && {
    std::sort(entries_.begin(), entries_.end(), more);
    return std::move(entries_);
  }

 private:
  // Ties are broken by identity.
  static bool more(const Entry& a, const Entry& b) {
    return a.difference != b.difference ? a.difference > b.difference : a.first < b.first;
  }

  std::size_t most_;
  std::vector<Entry> entries_;
};

RowPair pair_of(const Sorted& first, std::size_t i, const OpRow& second) {
  const OpRow& row = first.row(i);
  return {.name = first.name(i),
          .rank = row.rank,
          .start = {row.start, second.start},
          .duration = {row.end - row.start, second.end - second.start}};
}

// By part and pass.
using Parts = std::array<PartComparison, 3 * kNumLayerParts>;

void count_parts(const RunRows& run, std::int64_t Both<std::int64_t>::*count, Duration Both<Duration>::*total,
                 Parts& parts) {
  for (const PartRow& row : run.parts) {
    PartComparison& part =
        parts[LayerTimes::pass_index(row.part.pass) * kNumLayerParts + static_cast<std::size_t>(row.part.part)];
    part.part = row.part;
    ++(part.count.*count);
    part.total.*total += row.end - row.start;
  }
}

std::optional<double> hidden_fraction(const RunRows& run) {
  const HiddenCommunication communication = hidden_of_run(run.parts, run.num_ranks);
  if (communication.all == Duration::zero()) return std::nullopt;
  return communication.fraction();
}

using Kinds = std::array<KindComparison, kNumRowKinds>;

void count_rows(const RunRows& run, std::int64_t Both<std::int64_t>::*count, Duration Both<Duration>::*total,
                Kinds& kinds) {
  for (const OpRow& row : run.rows) {
    KindComparison& kind = kinds[static_cast<std::size_t>(row.kind)];
    ++(kind.count.*count);
    kind.total.*total += row.end - row.start;
  }
}

// Fills in the results on pairs and on unpaired rows.
void pair_rows(const RunRows& first, const RunRows& second, const ComparisonOptions& options, Kinds& kinds,
               Comparison& out) {
  const Sorted a(first, options.first);
  const Sorted b(second, options.second);
  std::array<KindErrors, kNumRowKinds> errors;
  Differing differing(options.top);
  const auto threshold = Duration{
      static_cast<std::int64_t>(options.falls_behind_at * static_cast<double>(out.runs.first.makespan.count()))};
  std::optional<std::pair<std::size_t, std::size_t>> late_pair;
  const auto unpaired = [&](Unpaired& out_of, const Sorted& of, std::size_t i) {
    ++out_of.count;
    if (out_of.names.size() < options.top) out_of.names.push_back(of.name(i));
    return true;
  };
  walk(
      a, b,
      [&](std::size_t i, std::size_t j) {
        const OpRow& x = a.row(i);
        const OpRow& y = b.row(j);
        const Both<Duration> duration{x.end - x.start, y.end - y.start};
        const auto kind = static_cast<std::size_t>(x.kind);
        ++out.pairs;
        ++kinds[kind].pairs;
        errors[kind].add(duration.first, duration.second);
        differing.add(i, j, std::chrono::abs(duration.second - duration.first));
        if (y.start - x.start > threshold && (!late_pair || x.start < a.row(late_pair->first).start))
          late_pair = {i, j};
        return true;
      },
      [&](std::size_t i) { return unpaired(out.unpaired.first, a, i); },
      [&](std::size_t j) { return unpaired(out.unpaired.second, b, j); });

  for (std::size_t kind = 0; kind < kinds.size(); ++kind) errors[kind].finish(kinds[kind]);
  for (const auto& entry : std::move(differing).take()) {
    out.differing.push_back(pair_of(a, entry.first, b.row(entry.second)));
  }
  if (late_pair) out.falls_behind = pair_of(a, late_pair->first, b.row(late_pair->second));
}

}  // namespace

std::optional<double> relative_difference(double first, double second) {
  if (first == second) return 0.0;
  if (first == 0) return std::nullopt;
  return (second - first) / first;
}

std::optional<double> relative_difference(const Both<Duration>& both) {
  return relative_difference(static_cast<double>(both.first.count()), static_cast<double>(both.second.count()));
}

std::optional<double> Comparison::makespan_difference() const {
  return relative_difference(Both<Duration>{runs.first.makespan, runs.second.makespan});
}

Comparison compare(const RunRows& first, const RunRows& second, const ComparisonOptions& options) {
  Comparison out{.first = options.first,
                 .second = options.second,
                 .by_kind = options.by_kind,
                 .falls_behind_at = options.falls_behind_at};
  const int num_ranks = std::max(first.num_ranks, second.num_ranks);
  out.runs = {summary_of(first, num_ranks), summary_of(second, num_ranks)};
  Kinds kinds;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) kinds[kind].kind = static_cast<RowKind>(kind);
  count_rows(first, &Both<std::int64_t>::first, &Both<Duration>::first, kinds);
  count_rows(second, &Both<std::int64_t>::second, &Both<Duration>::second, kinds);
  if (!first.parts.empty() && !second.parts.empty()) {
    Parts parts;
    count_parts(first, &Both<std::int64_t>::first, &Both<Duration>::first, parts);
    count_parts(second, &Both<std::int64_t>::second, &Both<Duration>::second, parts);
    std::copy_if(parts.begin(), parts.end(), std::back_inserter(out.parts),
                 [](const PartComparison& part) { return part.count.first + part.count.second > 0; });
  }
  out.hidden = {hidden_fraction(first), hidden_fraction(second)};
  if (!options.by_kind) pair_rows(first, second, options, kinds, out);
  std::copy_if(kinds.begin(), kinds.end(), std::back_inserter(out.kinds),
               [](const KindComparison& kind) { return kind.count.first + kind.count.second > 0; });
  return out;
}

Comparison compare(const OpGraph& graph, const TimelineSide& first, const TimelineSide& second,
                   const ComparisonOptions& options) {
  return compare(rows_of(graph, *first.timeline, first.memory), rows_of(graph, *second.timeline, second.memory),
                 options);
}

std::string first_difference(const RunRows& first, const RunRows& second, const ComparisonOptions& options) {
  const auto ops = [](const RunRows& run) {
    RunRows out{.num_ranks = run.num_ranks, .sliced = run.sliced};
    for (const OpRow& row : run.rows) {
      if (occupies_rank(row.kind) && row.kind != RowKind::recompute && row.kind != RowKind::optimizer) {
        out.rows.push_back(row);
      }
    }
    return out;
  };
  const RunRows first_ops = ops(first);
  const RunRows second_ops = ops(second);
  const Sorted a(first_ops, options.first);
  const Sorted b(second_ops, options.second);
  std::string difference;
  const auto only = [&](const Sorted& of, std::size_t i, const std::string& has, const std::string& lacks) {
    difference = fmt::format("{} has {} on rank {}, {} does not", has, of.name(i), of.row(i).rank, lacks);
    return false;
  };
  walk(
      a, b,
      [&](std::size_t i, std::size_t j) {
        if (a.row(i).rank == b.row(j).rank) return true;
        difference = fmt::format("{} has {} on rank {}, {} on rank {}", options.first, a.name(i), a.row(i).rank,
                                 options.second, b.row(j).rank);
        return false;
      },
      [&](std::size_t i) { return only(a, i, options.first, options.second); },
      [&](std::size_t j) { return only(b, j, options.second, options.first); });
  return difference;
}

}  // namespace sluice::traces
