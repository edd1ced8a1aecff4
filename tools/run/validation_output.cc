#include "tools/run/validation_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/command/document.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string ms(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }
std::string mib(std::int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / (1024.0 * 1024.0)); }
std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }
std::string signed_percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

double difference(double predicted, double measured) { return predicted > 0 ? measured / predicted - 1 : 0; }

constexpr std::array kMarks = {"", "  outside tolerance", "  machine busy: no verdict"};  // by Verdict

void print_validation_summary(std::span<const Validation> validations, const Tolerances& tolerances) {
  fmt::print("{:<18} {:>10} {:>10} {:>21} {:>9}  {:>16}  {:>17}\n", "schedule", "predicted", "measured", "min to max",
             "error", "bubble", "peak memory error");
  for (const Validation& of : validations) {
    const auto [least, most] = std::minmax_element(of.measured_s.begin(), of.measured_s.end());
    fmt::print("{:<18} {:>7} ms {:>7} ms {:>21} {:>9}  {:>7}, {:>7}  {:>17}{}\n", of.schedule, ms(of.predicted_s),
               ms(of.median_s()), ms(*least) + " to " + ms(*most), signed_percent(of.makespan_difference()),
               percent(of.bubble_fraction.first), percent(of.bubble_fraction.second),
               signed_percent(of.memory_difference()), kMarks[static_cast<std::size_t>(tolerances.verdict(of))]);
  }
}

void print_validation_details(const Validation& of) {
  fmt::print("\n{:<12} {:>6} {:>14} {:>14} {:>9} {:>14}\n", of.schedule, "count", "predicted", "measured", "error",
             "op error");
  for (const KindValidation& kind : of.kinds) {
    fmt::print("  {:<10} {:>6} {:>11} ms {:>11} ms {:>9} {:>14}\n", kRowKindNames[static_cast<std::size_t>(kind.kind)],
               kind.count, ms(kind.predicted_s), ms(kind.measured_s),
               signed_percent(difference(kind.predicted_s, kind.measured_s)),
               kind.op_error ? percent(*kind.op_error) : "-");
  }
  for (const PartValidation& part : of.parts) {
    fmt::print("  {:<10} {:>6} {:>11} ms {:>11} ms {:>9}\n", to_string(part.part), "", ms(part.seconds.first),
               ms(part.seconds.second), signed_percent(difference(part.seconds.first, part.seconds.second)));
  }
  for (std::size_t rank = 0; rank < of.ranks.size(); ++rank) {
    const RankValidation& at = of.ranks[rank];
    fmt::print("  rank {:<5} {:>6} {:>11} ms {:>11} ms {:>9}   bubble {} and {}; peak {} and {} of {} MiB\n", rank,
               "busy", ms(at.busy_s.first), ms(at.busy_s.second),
               signed_percent(difference(at.busy_s.first, at.busy_s.second)), percent(at.bubble_fraction.first),
               percent(at.bubble_fraction.second), mib(at.predicted_peak_bytes), mib(at.held_bytes),
               mib(at.arena_bytes));
    if (!at.exchange) continue;
    fmt::print("  {:<17} {:>11} ms {:>11} ms {:>9}   hidden {} and {}\n", "dispatch, combine",
               ms(at.exchange->seconds.first), ms(at.exchange->seconds.second),
               signed_percent(difference(at.exchange->seconds.first, at.exchange->seconds.second)),
               percent(at.exchange->hidden.first), percent(at.exchange->hidden.second));
  }
}

OrderedJson both(const Both<double>& values) { return {{"predicted", values.first}, {"measured", values.second}}; }

OrderedJson validation_json(const Validation& of, const Tolerances& tolerances) {
  OrderedJson kinds = OrderedJson::array();
  for (const KindValidation& kind : of.kinds) {
    OrderedJson row = {{"kind", kRowKindNames[static_cast<std::size_t>(kind.kind)]},
                       {"count", kind.count},
                       {"predicted_s", kind.predicted_s},
                       {"measured_s", kind.measured_s}};
    if (kind.op_error) row["op_error"] = *kind.op_error;
    kinds.push_back(std::move(row));
  }
  OrderedJson ranks = OrderedJson::array();
  for (const RankValidation& rank : of.ranks) {
    ranks.push_back({{"busy_s", both(rank.busy_s)},
                     {"bubble_fraction", both(rank.bubble_fraction)},
                     {"predicted_peak_bytes", rank.predicted_peak_bytes},
                     {"held_bytes", rank.held_bytes},
                     {"arena_bytes", rank.arena_bytes}});
    if (!rank.exchange) continue;
    ranks.back()["exchange"] = {{"seconds", both(rank.exchange->seconds)}, {"hidden", both(rank.exchange->hidden)}};
  }
  OrderedJson parts = OrderedJson::array();
  for (const PartValidation& part : of.parts) {
    parts.push_back(
        {{"part", to_string(part.part)}, {"predicted_s", part.seconds.first}, {"measured_s", part.seconds.second}});
  }
  const Verdict verdict = tolerances.verdict(of);
  OrderedJson within;  // null without a verdict
  if (verdict != Verdict::none) within = verdict == Verdict::within;
  OrderedJson out = {{"schedule", of.schedule},
                     {"within_tolerance", within},
                     {"disturbed_runs", of.disturbed_runs},
                     {"longest_wait_s", of.longest_wait_s},
                     {"involuntary_switches", of.switches},
                     {"makespan",
                      {{"predicted_s", of.predicted_s},
                       {"measured_s", of.median_s()},
                       {"difference", of.makespan_difference()},
                       {"runs_s", of.measured_s}}},
                     {"bubble_fraction", both(of.bubble_fraction)},
                     {"memory_difference", of.memory_difference()},
                     {"kinds", std::move(kinds)},
                     {"ranks", std::move(ranks)}};
  if (!parts.empty()) out["parts"] = std::move(parts);
  return out;
}

}  // namespace

Verdict Tolerances::verdict(const Validation& validation) const {
  if (!validation.calm) return Verdict::none;
  const bool holds =
      std::abs(validation.makespan_difference()) <= makespan && std::abs(validation.memory_difference()) <= memory;
  return holds ? Verdict::within : Verdict::outside;
}

void print_validations(std::span<const Validation> validations, const ValidationHeading& heading,
                       const Tolerances& tolerances) {
  fmt::print("{}, {}, {}, {}; costs {}; medians of {} runs\n\n", heading.machine, heading.model, heading.precision,
             heading.transport, heading.costs, validations.front().measured_s.size());
  print_validation_summary(validations, tolerances);
  int disturbed = 0;
  for (const Validation& of : validations) disturbed += of.disturbed_runs;
  if (disturbed > 0) fmt::print("\n{} runs in which a rank waited for a core are left out or marked\n", disturbed);
  for (const Validation& of : validations) print_validation_details(of);
}

std::string validations_json(std::span<const Validation> validations, const ValidationHeading& heading,
                             const Tolerances& tolerances) {
  OrderedJson out = {{"schema", "sluice.validation/1"},
                     {"machine", heading.machine},
                     {"model", heading.model},
                     {"precision", heading.precision},
                     {"transport", heading.transport},
                     {"costs", heading.costs},
                     {"tolerance", tolerances.makespan},
                     {"memory_tolerance", tolerances.memory},
                     {"validations", OrderedJson::array()}};
  for (const Validation& of : validations) out["validations"].push_back(validation_json(of, tolerances));
  return json_text(out);
}

}  // namespace sluice::tools
