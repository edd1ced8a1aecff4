#include "tools/slice/slice_output.h"

#include <fmt/format.h>

#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

double over(Duration time, Duration base) { return base.count() > 0 ? to_seconds(time) / to_seconds(base) - 1 : 0; }

std::string gap_text(Duration time, Duration bound) {
  if (time == bound) return fmt::format("optimal: equal to the lower bound {}", time_text(bound));
  return fmt::format("{:.2f} % above the lower bound {}", 100 * over(time, bound), time_text(bound));
}

std::string other(const std::string& what, Duration time, Duration best) {
  return fmt::format("  {:<28} {:>10}  {:+.1f} %\n", what, time_text(time), 100 * over(time, best));
}

std::string frame_text(const CutReport& report) {
  return fmt::format("{} tokens in multiples of {}, {}, {} per microbatch, {}\n", report.tokens, report.granularity,
                     counted(report.cells, "cell", "s"), counted(report.sequences, "sequence", "s"),
                     report.backward ? "forward and backward" : "forward only");
}

std::string hop_latency_text(const CutReport& report) {
  if (report.hop_latency.count() == 0) return "";
  return fmt::format("  not included, the same for every cut: latency of {} transfers, {}\n",
                     (report.cells - 1) * (report.backward ? 2 : 1),
                     time_text(report.hop_latency * (report.backward ? 2 : 1)));
}

std::string chunk_times_text(const ChunkTimes& times) {
  return fmt::format(
      "  n tokens after u: {:.4g} s + {:.4g} u + {:.4g} n + {:.4g} (2 u n + n^2); mean error of the chunks "
      "{:.1f} %, largest {:.1f} %\n",
      times.fixed_s, times.per_context_s, times.per_token_s, times.attention_s, 100 * times.mean_error,
      100 * times.max_error);
}

OrderedJson frame_json(const CutReport& report) {
  return {{"schema", "sluice.slice/1"},        {"method", report.method}, {"tokens", report.tokens},
          {"granularity", report.granularity}, {"cells", report.cells},   {"sequences", report.sequences},
          {"backward", report.backward}};
}

OrderedJson slice_fit_json(const std::optional<Fit>& fit) {
  if (!fit) return nullptr;
  return {{"fits", fit->fits},
          {"rank", fit->rank},
          {"needed_bytes", fit->needed_bytes},
          {"capacity_bytes", fit->capacity_bytes}};
}

bool fits(const SlicesCandidate& candidate) { return !candidate.fit || candidate.fit->fits; }

}  // namespace

std::string run_lengths(std::span<const std::int64_t> lengths) {
  std::string out;
  for (std::size_t i = 0; i < lengths.size();) {
    std::size_t end = i;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    if (!out.empty()) out += ' ';
    out += end - i > 1 ? fmt::format("{}x{}", end - i, lengths[i]) : fmt::format("{}", lengths[i]);
    i = end;
  }
  return out;
}

std::string lengths_text(std::span<const std::int64_t> lengths, const std::string& schedule, bool json) {
  if (!json) return fmt::format("{}\n", fmt::join(lengths, ","));
  OrderedJson out = {{"slice_lengths", std::vector<std::int64_t>(lengths.begin(), lengths.end())}};
  if (!schedule.empty()) out["name"] = schedule;
  return OrderedJson{{"schedule", out}}.dump(2) + "\n";
}

std::string cut_table(const CutReport& report) {
  const SlicePlan& plan = report.plan;
  std::string out = fmt::format("{}: {}", report.method, frame_text(report));
  out += fmt::format("  {}: {}\n", counted(std::ssize(plan.lengths), "slice", "s"), run_lengths(plan.lengths));
  if (report.flops_spread)
    out += fmt::format("  FLOPs of the rounded slices differ by {:.2f} %\n", 100 * *report.flops_spread);
  out += fmt::format("  time {}    {}\n", time_text(plan.latency),
                     report.proven ? gap_text(plan.latency, plan.lower_bound)
                                   : fmt::format("{:+.2f} % against the fastest cut in multiples of {}, {}",
                                                 100 * over(plan.latency, plan.lower_bound), report.best_granularity,
                                                 time_text(plan.lower_bound)));
  out += other(fmt::format("even, {}", counted(std::ssize(plan.lengths), "slice", "s")), report.even, plan.latency);
  out +=
      other(fmt::format("best even, {}", counted(report.best_even, "slice", "s")), report.best_even_time, plan.latency);
  out += other("no slicing", report.whole, plan.latency);
  if (report.chunks) out += chunk_times_text(*report.chunks);
  return out + hop_latency_text(report);
}

OrderedJson cut_json(const CutReport& report) {
  const SlicePlan& plan = report.plan;
  OrderedJson out = frame_json(report);
  out["slices"] = plan.lengths.size();
  out["slice_lengths"] = plan.lengths;
  out["time_s"] = to_seconds(plan.latency);
  out["lower_bound_s"] = report.proven ? OrderedJson(to_seconds(plan.lower_bound)) : OrderedJson(nullptr);
  out["gap"] = report.proven ? OrderedJson(over(plan.latency, plan.lower_bound)) : OrderedJson(nullptr);
  if (!report.proven) {
    out["fastest"] = {{"granularity", report.best_granularity}, {"time_s", to_seconds(plan.lower_bound)}};
  }
  out["sweeps"] = plan.sweeps;
  if (const auto& times = report.chunks) {
    out["chunk_times"] = {{"fixed_s", times->fixed_s},         {"per_context_s", times->per_context_s},
                          {"per_token_s", times->per_token_s}, {"attention_s", times->attention_s},
                          {"mean_error", times->mean_error},   {"max_error", times->max_error}};
  }
  if (report.flops_spread) out["flops_spread"] = *report.flops_spread;
  out["even_s"] = to_seconds(report.even);
  out["best_even"] = {{"slices", report.best_even}, {"time_s", to_seconds(report.best_even_time)}};
  out["unsliced_s"] = to_seconds(report.whole);
  out["hop_latency_s"] = to_seconds(report.hop_latency * (report.backward ? 2 : 1));
  return out;
}

std::string joint_table(const JointReport& report) {
  std::string out = fmt::format("joint: {}", frame_text(report.frame));
  for (const JointPlan::Part& part : report.plan.parts) {
    out += fmt::format("  {:>12}  {:>10}  {}\n", counted(part.sequences, "sequence", "s"), time_text(part.plan.latency),
                       run_lengths(part.plan.lengths));
  }
  out += fmt::format("  time {}    {}\n", time_text(report.plan.latency),
                     gap_text(report.plan.latency, report.plan.lower_bound));
  out += other("all sequences in one part", report.together, report.plan.latency);
  out += other("one sequence per part", report.apart, report.plan.latency);
  return out + hop_latency_text(report.frame);
}

OrderedJson joint_json(const JointReport& report) {
  OrderedJson out = frame_json(report.frame);
  out["parts"] = OrderedJson::array();
  for (const JointPlan::Part& part : report.plan.parts) {
    out["parts"].push_back({{"sequences", part.sequences},
                            {"slice_lengths", part.plan.lengths},
                            {"time_s", to_seconds(part.plan.latency)}});
  }
  out["time_s"] = to_seconds(report.plan.latency);
  out["lower_bound_s"] = to_seconds(report.plan.lower_bound);
  out["gap"] = over(report.plan.latency, report.plan.lower_bound);
  out["together_s"] = to_seconds(report.together);
  out["apart_s"] = to_seconds(report.apart);
  out["hop_latency_s"] = to_seconds(report.frame.hop_latency * (report.frame.backward ? 2 : 1));
  return out;
}

std::string schedule_table(const SlicesRequest& request, const ScheduleSlices& found) {
  const Scenario& scenario = request.scenario;
  std::string out = fmt::format("{}: {} tokens in multiples of {}, {} simulations{}\n", scenario.schedule,
                                scenario.training.sequence_length, request.granularity, found.simulations,
                                found.interrupted   ? ", interrupted: best so far"
                                : found.out_of_time ? ", time budget exhausted"
                                                    : "");
  out +=
      fmt::format("  {:>6}  {:>10}  {:>10}  {:>9}  {:>6}  {}\n", "slices", "makespan", "even", "bound", "GiB", "cut");
  for (const SlicesCandidate& candidate : found.candidates) {
    if (!candidate.refused.empty()) continue;
    const std::string memory =
        candidate.fit ? fmt::format("{:.1f}", static_cast<double>(candidate.fit->needed_bytes) / kGiB) : "-";
    out += fmt::format("  {:>6}  {:>10}  {:>10}  {:>9}  {:>6}  {}{}\n", candidate.slices, time_text(candidate.makespan),
                       time_text(candidate.even), time_text(candidate.lower_bound), memory,
                       run_lengths(candidate.lengths), fits(candidate) ? "" : "  (does not fit)");
  }
  for (const SlicesCandidate& candidate : found.candidates) {
    if (!candidate.refused.empty()) out += fmt::format("  {:>6}  {}\n", candidate.slices, candidate.refused);
  }
  if (!found.best) return out + "  no cut fits in memory\n";
  const SlicesCandidate& best = found.candidates[*found.best];
  out += fmt::format("\n  {}: {}\n  makespan {}    {}\n", counted(best.slices, "slice", "s"), run_lengths(best.lengths),
                     time_text(best.makespan), gap_text(best.makespan, found.lower_bound));
  out += other(fmt::format("even, {}", counted(best.slices, "slice", "s")), best.even, best.makespan);
  if (found.candidates.front().slices == 1) {
    out += other(fits(found.candidates.front()) ? "no slicing" : "no slicing (does not fit)",
                 found.candidates.front().makespan, best.makespan);
  }
  return out;
}

OrderedJson schedule_json(const SlicesRequest& request, const ScheduleSlices& found) {
  OrderedJson out = {{"schema", "sluice.slice/1"},
                     {"method", "schedule"},
                     {"schedule", request.scenario.schedule},
                     {"tokens", request.scenario.training.sequence_length},
                     {"granularity", request.granularity},
                     {"simulations", found.simulations},
                     {"out_of_time", found.out_of_time},
                     {"interrupted", found.interrupted},
                     {"fits", found.best.has_value()}};
  if (found.best) {
    const SlicesCandidate& best = found.candidates[*found.best];
    out["slices"] = best.slices;
    out["slice_lengths"] = best.lengths;
    out["time_s"] = to_seconds(best.makespan);
    out["lower_bound_s"] = to_seconds(found.lower_bound);
    out["gap"] = over(best.makespan, found.lower_bound);
    out["even_s"] = to_seconds(best.even);
  }
  out["candidates"] = OrderedJson::array();
  for (const SlicesCandidate& candidate : found.candidates) {
    if (!candidate.refused.empty()) {
      out["candidates"].push_back({{"slices", candidate.slices}, {"refused", candidate.refused}});
      continue;
    }
    out["candidates"].push_back({{"slices", candidate.slices},
                                 {"slice_lengths", candidate.lengths},
                                 {"time_s", to_seconds(candidate.makespan)},
                                 {"even_s", to_seconds(candidate.even)},
                                 {"lower_bound_s", to_seconds(candidate.lower_bound)},
                                 {"searched", candidate.searched},
                                 {"memory", slice_fit_json(candidate.fit)}});
  }
  return out;
}

}  // namespace sluice::tools
