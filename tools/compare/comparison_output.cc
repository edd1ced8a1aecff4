#include "tools/compare/comparison_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kIdleWords[kNumIdleCauses] = {"warm-up",    "drain",     "for a sender", "for a slice",
                                                         "for a link", "optimizer", "other"};

// --- text ---------------------------------------------------------------------------------------------------------

std::string signed_time(Duration difference) {
  if (difference == Duration::zero()) return "0";
  return (difference < Duration::zero() ? "-" : "+") + time_text(std::chrono::abs(difference));
}

std::string signed_percent(const std::optional<double>& relative) {
  return relative ? fmt::format("{:+.1f} %", 100 * *relative) : "-";
}

std::string percent(const std::optional<double>& fraction) {
  return fraction ? fmt::format("{:.1f} %", 100 * *fraction) : "-";
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

class Table {
 public:
  explicit Table(const Comparison& comparison)
      : comparison_(comparison),
        width_(static_cast<int>(std::max({comparison.first.size(), comparison.second.size(), std::size_t{10}}))) {}

  std::string text() {
    write_runs();
    write_kinds();
    write_parts();
    write_ranks();
    write_idle();
    write_rows();
    return std::move(out_);
  }

 private:
  using Sink = std::back_insert_iterator<std::string>;
  Sink to() { return std::back_inserter(out_); }

  // Writes the values of both runs and their difference.
  void both(std::string_view first, std::string_view second, std::string_view difference) {
    fmt::format_to(to(), "  {:>{}}  {:>{}}  {:>11}", first, width_, second, width_, difference);
  }
  void times(const Both<Duration>& time) {
    both(time_text(time.first), time_text(time.second), signed_percent(relative_difference(time)));
  }
  void fractions(const Both<double>& value) {
    both(percent(value.first), percent(value.second), fmt::format("{:+.1f} pts", 100 * (value.second - value.first)));
  }
  void heads(std::string_view what) {
    fmt::format_to(to(), "{:<14}", what);
    both(comparison_.first, comparison_.second, "difference");
  }

  void write_runs() {
    const auto& [first, second] = comparison_.runs;
    heads("");
    const auto row = [&](std::string_view name) { fmt::format_to(to(), "\n  {:<12}", name); };
    row("makespan");
    times({first.makespan, second.makespan});
    row("span");
    times({first.span, second.span});
    row("busy");
    times({first.busy, second.busy});
    row("bubble");
    fractions({first.bubble_fraction, second.bubble_fraction});
    out_ += '\n';
  }

  void write_kinds() {
    out_ += '\n';
    heads("total time of");
    out_ += comparison_.by_kind ? "   number\n" : "   pairs   op by op: median     mean\n";
    for (const KindComparison& kind : comparison_.kinds) {
      fmt::format_to(to(), "  {:<12}", kRowKindNames[static_cast<std::size_t>(kind.kind)]);
      times(kind.total);
      if (!comparison_.by_kind) {
        fmt::format_to(to(), "  {:>6}  {:>17}  {:>7}", kind.pairs, percent(kind.median_error),
                       percent(kind.mean_error));
      }
      if (comparison_.by_kind || kind.count.first != kind.count.second) {
        fmt::format_to(to(), "   {} and {}", kind.count.first, kind.count.second);
      }
      out_ += '\n';
    }
  }

  // Writes the parts of layers with experts, and how much of dispatch and combine is hidden.
  void write_parts() {
    const Both<std::optional<double>>& hidden = comparison_.hidden;
    if (!hidden.first && !hidden.second) return;
    out_ += '\n';
    heads("total time of");
    out_ += "   number\n";
    for (const PartComparison& part : comparison_.parts) {
      fmt::format_to(to(), "  {:<12}", to_string(part.part));
      times(part.total);
      if (part.count.first == part.count.second) {
        fmt::format_to(to(), "  {:>6}\n", part.count.first);
      } else {
        fmt::format_to(to(), "   {} and {}\n", part.count.first, part.count.second);
      }
    }
    fmt::format_to(to(), "  {:<12}", "hidden");
    if (hidden.first && hidden.second) {
      fractions({*hidden.first, *hidden.second});
    } else {
      both(percent(hidden.first), percent(hidden.second), "-");
    }
    out_ += "   of dispatch and combine\n";
  }

  void write_ranks() {
    constexpr int kMostRows = 32;
    const auto& [first, second] = comparison_.runs;
    const int num_ranks = static_cast<int>(first.ranks.size());
    const bool memory = std::any_of(first.ranks.begin(), first.ranks.end(), has_peak) ||
                        std::any_of(second.ranks.begin(), second.ranks.end(), has_peak);
    out_ += '\n';
    heads("busy");
    both("bubble", "bubble", "difference");
    if (memory) both("peak", "peak", "difference");
    out_ += '\n';
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (num_ranks > kMostRows && rank == kMostRows / 2) {
        rank = num_ranks - kMostRows / 2;
        fmt::format_to(to(), "  ... ({} ranks omitted; see --json)\n", num_ranks - kMostRows);
      }
      const RankSummary& a = first.ranks[rank];
      const RankSummary& b = second.ranks[rank];
      fmt::format_to(to(), "  {:<12}", fmt::format("rank {}", rank));
      times({a.busy, b.busy});
      fractions({a.bubble_fraction, b.bubble_fraction});
      if (memory) write_peaks(a, b);
      out_ += '\n';
    }
  }

  static bool has_peak(const RankSummary& rank) { return rank.peak_bytes.has_value(); }

  void write_peaks(const RankSummary& first, const RankSummary& second) {
    const auto text = [](const RankSummary& rank) { return has_peak(rank) ? bytes_text(*rank.peak_bytes) : "-"; };
    std::string difference = "-";
    if (has_peak(first) && has_peak(second)) {
      difference = signed_percent(
          relative_difference(static_cast<double>(*first.peak_bytes), static_cast<double>(*second.peak_bytes)));
    }
    both(text(first), text(second), difference);
  }

  // Writes the idle time of all ranks by cause, if it is known for a run.
  void write_idle() {
    const auto sum_of = [](const RunSummary& run) -> std::optional<IdleByCause> {
      IdleByCause sum{};
      for (const RankSummary& rank : run.ranks) {
        if (!rank.idle) return std::nullopt;
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (*rank.idle)[i];
      }
      return sum;
    };
    const std::optional<IdleByCause> first = sum_of(comparison_.runs.first);
    const std::optional<IdleByCause> second = sum_of(comparison_.runs.second);
    if (!first && !second) return;
    out_ += '\n';
    heads("idle");
    out_ += '\n';
    for (std::size_t i = 0; i < kNumIdleCauses; ++i) {
      if ((!first || (*first)[i] == Duration::zero()) && (!second || (*second)[i] == Duration::zero())) continue;
      fmt::format_to(to(), "  {:<12}", kIdleWords[i]);
      const auto text = [i](const std::optional<IdleByCause>& idle) { return idle ? time_text((*idle)[i]) : "-"; };
      both(text(first), text(second), first && second ? signed_time((*second)[i] - (*first)[i]) : "-");
      out_ += '\n';
    }
  }

  void write_rows() {
    if (!comparison_.differing.empty()) {
      out_ += "\nlargest differences\n";
      std::size_t longest = 0;
      for (const RowPair& pair : comparison_.differing) longest = std::max(longest, pair.name.size());
      for (const RowPair& pair : comparison_.differing) {
        fmt::format_to(to(), "  {:<{}}  rank {:<3}", pair.name, longest, pair.rank);
        both(time_text(pair.duration.first), time_text(pair.duration.second),
             signed_time(pair.duration.second - pair.duration.first));
        out_ += '\n';
      }
    }
    if (comparison_.by_kind) return;
    out_ += '\n';
    if (const auto& behind = comparison_.falls_behind) {
      fmt::format_to(to(), "{} falls behind first at {} on rank {}: it starts at {}, {} after {}\n", comparison_.second,
                     behind->name, behind->rank, time_text(behind->start.second),
                     time_text(behind->start.second - behind->start.first), comparison_.first);
    } else {
      fmt::format_to(to(), "{} never falls behind by more than {:.3g} % of the makespan\n", comparison_.second,
                     100 * comparison_.falls_behind_at);
    }
    write_unpaired(comparison_.first, comparison_.unpaired.first);
    write_unpaired(comparison_.second, comparison_.unpaired.second);
  }

  void write_unpaired(const std::string& name, const Unpaired& unpaired) {
    if (unpaired.count == 0) return;
    fmt::format_to(to(), "only in {}: {}", name, unpaired.count);
    for (std::size_t i = 0; i < unpaired.names.size(); ++i) {
      fmt::format_to(to(), "{}{}", i == 0 ? ": " : ", ", unpaired.names[i]);
    }
    out_ += std::ssize(unpaired.names) < unpaired.count && !unpaired.names.empty() ? ", ...\n" : "\n";
  }

  const Comparison& comparison_;
  int width_;
  std::string out_;
};

// --- JSON ---------------------------------------------------------------------------------------------------------

OrderedJson number_or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson seconds_json(const Both<Duration>& time) {
  return {{"first", to_seconds(time.first)},
          {"second", to_seconds(time.second)},
          {"relative", number_or_null(relative_difference(time))}};
}

OrderedJson fraction_json(double first, double second) {
  return {{"first", first}, {"second", second}, {"difference", second - first}};
}

OrderedJson mean_json(const KindComparison& kind) {
  const auto mean = [](Duration total, std::int64_t count) -> std::optional<double> {
    if (count == 0) return std::nullopt;
    return to_seconds(total) / static_cast<double>(count);
  };
  return {{"first", number_or_null(mean(kind.total.first, kind.count.first))},
          {"second", number_or_null(mean(kind.total.second, kind.count.second))}};
}

OrderedJson kinds_json(const Comparison& comparison) {
  OrderedJson kinds = OrderedJson::array();
  for (const KindComparison& kind : comparison.kinds) {
    kinds.push_back({{"kind", kRowKindNames[static_cast<std::size_t>(kind.kind)]},
                     {"count", {{"first", kind.count.first}, {"second", kind.count.second}}},
                     {"total_s", seconds_json(kind.total)},
                     {"mean_s", mean_json(kind)},
                     {"pairs", kind.pairs},
                     {"median_error", number_or_null(kind.median_error)},
                     {"mean_error", number_or_null(kind.mean_error)},
                     {"total_error", number_or_null(kind.total_error)}});
  }
  return kinds;
}

OrderedJson parts_json(const Comparison& comparison) {
  OrderedJson parts = OrderedJson::array();
  for (const PartComparison& part : comparison.parts) {
    parts.push_back({{"part", to_string(part.part)},
                     {"count", {{"first", part.count.first}, {"second", part.count.second}}},
                     {"total_s", seconds_json(part.total)}});
  }
  return parts;
}

// The difference is null if one of the runs has no dispatch and combine.
OrderedJson hidden_json(const Both<std::optional<double>>& hidden) {
  const auto& [first, second] = hidden;
  return {{"first", number_or_null(first)},
          {"second", number_or_null(second)},
          {"difference", first && second ? OrderedJson(*second - *first) : OrderedJson(nullptr)}};
}

OrderedJson idle_json(const std::optional<IdleByCause>& idle) {
  if (!idle) return nullptr;
  OrderedJson out = OrderedJson::object();
  for (std::size_t i = 0; i < idle->size(); ++i) out[std::string(kIdleCauseNames[i]) + "_s"] = to_seconds((*idle)[i]);
  return out;
}

OrderedJson bytes_json(const std::optional<std::int64_t>& first, const std::optional<std::int64_t>& second) {
  std::optional<double> relative;
  if (first && second) relative = relative_difference(static_cast<double>(*first), static_cast<double>(*second));
  return {{"first", first ? OrderedJson(*first) : OrderedJson(nullptr)},
          {"second", second ? OrderedJson(*second) : OrderedJson(nullptr)},
          {"relative", number_or_null(relative)}};
}

OrderedJson ranks_json(const Comparison& comparison) {
  OrderedJson ranks = OrderedJson::array();
  for (std::size_t rank = 0; rank < comparison.runs.first.ranks.size(); ++rank) {
    const RankSummary& first = comparison.runs.first.ranks[rank];
    const RankSummary& second = comparison.runs.second.ranks[rank];
    ranks.push_back({{"rank", rank},
                     {"busy_s", seconds_json({first.busy, second.busy})},
                     {"bubble_fraction", fraction_json(first.bubble_fraction, second.bubble_fraction)},
                     {"first_start_s", seconds_json({first.first_start, second.first_start})},
                     {"last_end_s", seconds_json({first.last_end, second.last_end})},
                     {"peak_memory_bytes", bytes_json(first.peak_bytes, second.peak_bytes)},
                     {"idle", {{"first", idle_json(first.idle)}, {"second", idle_json(second.idle)}}}});
  }
  return ranks;
}

OrderedJson pair_json(const RowPair& pair) {
  return {{"op", pair.name},
          {"rank", pair.rank},
          {"start_s", {{"first", to_seconds(pair.start.first)}, {"second", to_seconds(pair.start.second)}}},
          {"duration_s", seconds_json(pair.duration)}};
}

OrderedJson unpaired_json(const Unpaired& unpaired) { return {{"count", unpaired.count}, {"names", unpaired.names}}; }

}  // namespace

std::string comparison_table(const Comparison& comparison) { return Table(comparison).text(); }

OrderedJson comparison_document(const Comparison& comparison) {
  const auto& [first, second] = comparison.runs;
  OrderedJson out = {{"schema", "sluice.comparison/1"},
                     {"first", comparison.first},
                     {"second", comparison.second},
                     {"by_kind", comparison.by_kind},
                     {"makespan_s", seconds_json({first.makespan, second.makespan})},
                     {"span_s", seconds_json({first.span, second.span})},
                     {"busy_s", seconds_json({first.busy, second.busy})},
                     {"bubble_fraction", fraction_json(first.bubble_fraction, second.bubble_fraction)},
                     {"kinds", kinds_json(comparison)},
                     {"ranks", ranks_json(comparison)}};
  if (!comparison.parts.empty()) out["parts"] = parts_json(comparison);
  if (comparison.hidden.first || comparison.hidden.second) out["hidden_fraction"] = hidden_json(comparison.hidden);
  OrderedJson differing = OrderedJson::array();
  for (const RowPair& pair : comparison.differing) differing.push_back(pair_json(pair));
  out["differing"] = std::move(differing);
  out["falls_behind_at"] = comparison.falls_behind_at;
  out["falls_behind"] = comparison.falls_behind ? pair_json(*comparison.falls_behind) : OrderedJson(nullptr);
  out["pairs"] = comparison.pairs;
  out["unpaired"] = {{"first", unpaired_json(comparison.unpaired.first)},
                     {"second", unpaired_json(comparison.unpaired.second)}};
  return out;
}

}  // namespace sluice::tools
