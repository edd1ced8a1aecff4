#include "tools/compare/comparison_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "sim/engine/predict.h"
#include "tools/command/automatic.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/document.h"
#include "tools/command/scenario_flags.h"
#include "traces/measured/measured_rows.h"
#include "traces/measured/primus.h"
#include "traces/measured/read_measured.h"

namespace sluice::tools {
namespace {

ComparedRun simulated_run(const std::string& path, const std::string& text) {
  const Scenario scenario = scenario_from_json(parse_json(text, path), path, ScenarioFlags::folder_of(path));
  const PlannedSetup planned = planned_with_progress(scenario);
  const Prediction prediction = predict(*planned.setup, {.keep_memory = true});
  ComparedRun side{.what = "simulated"};
  const OpGraph& graph = planned.setup->graph();
  side.read.run =
      rows_of(graph, prediction.timeline, graph.has_bytes() ? prediction.memory : std::vector<RankMemory>{});
  side.read.run.parts = part_rows(graph, planned.setup->cost(), prediction.timeline);
  side.read.notes.push_back(fmt::format("{} ranks", side.read.run.num_ranks));
  if (std::string warning = calibration_warning(scenario); !warning.empty()) {
    side.read.notes.push_back(std::move(warning));
  }
  return side;
}

constexpr std::string_view kIdleWords[kNumIdleCauses] = {"warm-up",    "drain",     "for a sender",    "for a slice",
                                                         "for a link", "optimizer", "for a host copy", "other"};

// --- JSON ---------------------------------------------------------------------------------------------------------

template <typename Value>
OrderedJson both(const Value& first, const Value& second) {
  return {{"first", first}, {"second", second}};
}

OrderedJson seconds_json(const Both<Duration>& time) {
  OrderedJson out = both(time.first, time.second);
  out["relative"] = relative_difference(time);
  return out;
}

template <typename Value>
OrderedJson difference_json(const std::optional<Value>& first, const std::optional<Value>& second) {
  OrderedJson out = both(first, second);
  out["difference"] = first && second ? OrderedJson(*second - *first) : OrderedJson(nullptr);
  return out;
}

OrderedJson fraction_json(double first, double second) {
  return difference_json(std::optional(first), std::optional(second));
}

OrderedJson bytes_json(const std::optional<std::int64_t>& first, const std::optional<std::int64_t>& second) {
  OrderedJson out = both(first, second);
  out["relative"] = nullptr;
  if (first && second) {
    out["relative"] = relative_difference(static_cast<double>(*first), static_cast<double>(*second));
  }
  return out;
}

OrderedJson mean_json(Duration total, std::int64_t count) {
  return count == 0 ? OrderedJson(nullptr) : OrderedJson(to_seconds(total) / static_cast<double>(count));
}

OrderedJson kinds_json(const Comparison& comparison) {
  OrderedJson kinds = OrderedJson::array();
  for (const KindComparison& kind : comparison.kinds) {
    kinds.push_back({{"kind", kRowKindNames[static_cast<std::size_t>(kind.kind)]},
                     {"count", both(kind.count.first, kind.count.second)},
                     {"total_s", seconds_json(kind.total)},
                     {"mean_s", both(mean_json(kind.total.first, kind.count.first),
                                     mean_json(kind.total.second, kind.count.second))},
                     {"pairs", kind.pairs},
                     {"median_error", kind.median_error},
                     {"mean_error", kind.mean_error},
                     {"total_error", kind.total_error}});
  }
  return kinds;
}

OrderedJson idle_json(const std::optional<IdleByCause>& idle) {
  return idle ? named(kIdleCauseNames, *idle, "_s") : OrderedJson(nullptr);
}

OrderedJson ranks_json(const Both<RunSummary>& runs) {
  OrderedJson ranks = OrderedJson::array();
  for (std::size_t rank = 0; rank < runs.first.ranks.size(); ++rank) {
    const RankSummary& first = runs.first.ranks[rank];
    const RankSummary& second = runs.second.ranks[rank];
    ranks.push_back({{"rank", rank},
                     {"busy_s", seconds_json({first.busy, second.busy})},
                     {"bubble_fraction", fraction_json(first.bubble_fraction, second.bubble_fraction)},
                     {"first_start_s", seconds_json({first.first_start, second.first_start})},
                     {"last_end_s", seconds_json({first.last_end, second.last_end})},
                     {"peak_memory_bytes", bytes_json(first.peak_bytes, second.peak_bytes)},
                     {"idle", both(idle_json(first.idle), idle_json(second.idle))}});
  }
  return ranks;
}

OrderedJson pair_json(const RowPair& pair) {
  return {{"op", pair.name},
          {"rank", pair.rank},
          {"start_s", both(pair.start.first, pair.start.second)},
          {"duration_s", seconds_json(pair.duration)}};
}

OrderedJson unpaired_json(const Unpaired& unpaired) { return {{"count", unpaired.count}, {"names", unpaired.names}}; }

// --- text ---------------------------------------------------------------------------------------------------------

// Returns the text of the values of both runs and of their difference.
OrderedJson shown(const OrderedJson& value, std::string_view unit, std::string_view difference) {
  return {{"first", filled(fmt::format("{{first:{}}}", unit), value)},
          {"second", filled(fmt::format("{{second:{}}}", unit), value)},
          {"difference", filled(difference, value)}};
}
OrderedJson times(const OrderedJson& value) { return shown(value, "t", "{relative:+.1%}"); }
OrderedJson fractions(const OrderedJson& value) { return shown(value, ".1%", "{difference:+.1p}"); }

OrderedJson named_row(std::string_view name, OrderedJson values) {
  values["name"] = name;
  return values;
}

std::string unpaired_text(const std::string& name, const Unpaired& unpaired) {
  if (unpaired.count == 0) return "";
  const bool more = std::ssize(unpaired.names) < unpaired.count && !unpaired.names.empty();
  return fmt::format("only in {}: {}{}{}{}\n", name, unpaired.count, unpaired.names.empty() ? "" : ": ",
                     fmt::join(unpaired.names, ", "), more ? ", ..." : "");
}

// Returns the idle time of all ranks by cause in a run; nothing if it is not known.
std::optional<IdleByCause> idle_of(const RunSummary& run) {
  IdleByCause sum{};
  for (const RankSummary& rank : run.ranks) {
    if (!rank.idle) return std::nullopt;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += (*rank.idle)[i];
  }
  return sum;
}

class ComparisonText {
 public:
  explicit ComparisonText(const Comparison& comparison)
      : comparison_(comparison),
        width_(std::max({comparison.first.size(), comparison.second.size(), std::size_t{10}})) {}

  std::string text(const OrderedJson& document) const {
    std::string out = runs(document);
    out += kinds(document["kinds"]);
    if (document.contains("hidden_fraction")) out += parts(document);
    out += ranks(document["ranks"]) + idle() + differences(document);
    return out + unpaired_text(comparison_.first, comparison_.unpaired.first) +
           unpaired_text(comparison_.second, comparison_.unpaired.second);
  }

 private:
  // Returns the columns of a value of both runs, which `shown` made.
  std::string columns(std::string_view first, std::string_view second, const std::string& path = "") const {
    return fmt::format("|{0:>{2}}={{{3}first}}|{1:>{2}}={{{3}second}}| difference={{{3}difference}}", first, second,
                       width_, path);
  }
  std::string columns() const { return columns(comparison_.first, comparison_.second); }

  // Returns a table with `title` as the heading of the names.
  static std::string block(std::string_view title, const std::string& columns, const OrderedJson& rows) {
    constexpr std::size_t kMostRows = 32;
    return table("<            ={name}" + columns, rows, kMostRows).replace(0, title.size(), title);
  }

  std::string runs(const OrderedJson& document) const {
    OrderedJson rows = {named_row("makespan", times(document["makespan_s"])),
                        named_row("span", times(document["span_s"])), named_row("busy", times(document["busy_s"])),
                        named_row("bubble", fractions(document["bubble_fraction"]))};
    return block("", columns(), rows) + '\n';
  }

  std::string kinds(const OrderedJson& kinds) const {
    OrderedJson rows = OrderedJson::array();
    for (const OrderedJson& kind : kinds) {
      OrderedJson& row = rows.emplace_back(named_row(kind["kind"].get<std::string>(), times(kind["total_s"])));
      row.update(kind);
      row["count"] = filled("{first} and {second}", kind["count"]);
      if (!comparison_.by_kind && kind["count"]["first"] == kind["count"]["second"]) row["count"] = nullptr;
    }
    return block(
        "total time of",
        columns() +
            (comparison_.by_kind
                 ? "|< number= {count}"
                 : "| pairs={pairs}| op by op: median={median_error:.1%}|   mean={mean_error:.1%}|<=[ {count}]"),
        rows);
  }

  // The parts of layers with experts, and how much of dispatch and combine is hidden.
  std::string parts(const OrderedJson& document) const {
    OrderedJson rows = OrderedJson::array();
    for (const OrderedJson& part : document.value("parts", OrderedJson::array())) {
      const OrderedJson& count = part["count"];
      rows.push_back(named_row(part["part"].get<std::string>(), times(part["total_s"])));
      rows.back()["number"] = filled(count["first"] == count["second"] ? "{first}" : "{first} and {second}", count);
    }
    rows.push_back(named_row("hidden", fractions(document["hidden_fraction"])));
    rows.back()["number"] = "of dispatch and combine";
    return '\n' + block("total time of", columns() + "|< number= {number}", rows);
  }

  std::string ranks(const OrderedJson& ranks) const {
    OrderedJson rows = OrderedJson::array();
    bool memory = false;
    for (const OrderedJson& rank : ranks) {
      OrderedJson& row = rows.emplace_back(named_row(filled("rank {rank}", rank), times(rank["busy_s"])));
      row["bubble"] = fractions(rank["bubble_fraction"]);
      const OrderedJson& peak = rank["peak_memory_bytes"];
      row["peak"] = shown(peak, "B", "{relative:+.1%}");
      memory |= !peak["first"].is_null() || !peak["second"].is_null();
    }
    const std::string peaks = memory ? columns("peak", "peak", "peak/") : "";
    return '\n' + block("busy", columns() + columns("bubble", "bubble", "bubble/") + peaks, rows);
  }

  // The idle time of all ranks by cause, if it is known for a run.
  std::string idle() const {
    const std::optional<IdleByCause> first = idle_of(comparison_.runs.first);
    const std::optional<IdleByCause> second = idle_of(comparison_.runs.second);
    if (!first && !second) return "";
    OrderedJson rows = OrderedJson::array();
    for (std::size_t i = 0; i < kNumIdleCauses; ++i) {
      const auto of = [i](const std::optional<IdleByCause>& idle) {
        return idle ? std::optional((*idle)[i]) : std::nullopt;
      };
      if (of(first).value_or(Duration{}) == Duration{} && of(second).value_or(Duration{}) == Duration{}) continue;
      rows.push_back(named_row(kIdleWords[i], shown(difference_json(of(first), of(second)), "t", "{difference:+t}")));
    }
    return '\n' + block("idle", columns(), rows);
  }

  std::string differences(const OrderedJson& document) const {
    OrderedJson rows = OrderedJson::array();
    for (const RowPair& pair : comparison_.differing) {
      OrderedJson times = both(pair.duration.first, pair.duration.second);
      times["difference"] = pair.duration.second - pair.duration.first;
      rows.push_back(named_row(pair.name, shown(times, "t", "{difference:+t}")));
      rows.back()["rank"] = fmt::format("rank {:<3}", pair.rank);
    }
    std::string out;
    if (!rows.empty()) {
      out = table("<={name}|<={rank}" + columns("", ""), rows);
      out = "\nlargest differences" + out.substr(out.find('\n'));
    }
    if (comparison_.by_kind) return out;
    if (!comparison_.falls_behind) {
      return out + fmt::format("\n{} never falls behind by more than {:.3g} % of the makespan\n", comparison_.second,
                               100 * comparison_.falls_behind_at);
    }
    OrderedJson values = document;
    const Both<Duration>& start = comparison_.falls_behind->start;
    values["late_s"] = start.second - start.first;
    return out + filled(
                     "\n{second} falls behind first at {falls_behind/op} on rank {falls_behind/rank}: it starts at "
                     "{falls_behind/start_s/second:t}, {late_s:t} after {first}\n",
                     values);
  }

  const Comparison& comparison_;
  std::size_t width_;
};

}  // namespace

ComparedRun compared_run(const std::string& word, std::optional<std::int64_t> step) {
  const std::vector<std::string> files = trace_files(word);
  if (is_primus_log(files)) return {.what = "read", .read = rows_of_step(read_primus_log(files), step, word)};
  if (files.size() > 1) return {.what = "read", .read = read_trace_run(files, {.step = step})};
  std::vector<std::unique_ptr<TraceSource>> sources;
  sources.push_back(std::make_unique<TraceSource>(files[0]));
  if (!sources[0]->is_trace()) return simulated_run(files[0], sources[0]->text());
  if (measured_kind(sources[0]->first_name())) {
    return {.what = "read", .read = rows_of_step(read_bytedance_timeline(*sources[0]), step, word)};
  }
  return {.what = "read", .read = read_trace_run(std::move(sources), {.step = step})};
}

Comparison compared(const RunRows& a, const RunRows& b, const ComparisonOptions& how, const std::string& first,
                    const std::string& second) {
  if (!how.by_kind) {
    const std::string difference = first_difference(a, b, {.first = first, .second = second});
    if (!difference.empty()) {
      throw InputError(fmt::format(
          "compare: expected two runs with the same stages, microbatches and slices: {}; --by-kind compares only kinds "
          "of ops",
          difference));
    }
  }
  return compare(a, b, how);
}

std::string comparison_text(const Comparison& comparison, const OrderedJson& document) {
  return ComparisonText(comparison).text(document);
}

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
                     {"ranks", ranks_json(comparison.runs)}};
  for (const PartComparison& part : comparison.parts) {
    out["parts"].push_back({{"part", to_string(part.part)},
                            {"count", both(part.count.first, part.count.second)},
                            {"total_s", seconds_json(part.total)}});
  }
  const auto& hidden = comparison.hidden;
  if (hidden.first || hidden.second) out["hidden_fraction"] = difference_json(hidden.first, hidden.second);
  out["differing"] = OrderedJson::array();
  for (const RowPair& pair : comparison.differing) out["differing"].push_back(pair_json(pair));
  out["falls_behind_at"] = comparison.falls_behind_at;
  out["falls_behind"] = comparison.falls_behind ? pair_json(*comparison.falls_behind) : OrderedJson(nullptr);
  out["pairs"] = comparison.pairs;
  out["unpaired"] = both(unpaired_json(comparison.unpaired.first), unpaired_json(comparison.unpaired.second));
  return out;
}

}  // namespace sluice::tools
