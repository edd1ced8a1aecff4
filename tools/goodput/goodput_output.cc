#include "tools/goodput/goodput_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "sim/goodput/closed_forms.h"

namespace sluice::tools {
namespace {

constexpr double kFlat = 0.001;  // goodput of the flat region of intervals below the best

double expected_failures(const GoodputRun& run) {
  double rate = 0;
  for (const FailureCause& cause : run.causes) rate += cause.failures_per_s();
  const Duration length = run.work.count() > 0 ? run.work : run.horizon;
  return 1 + rate * to_seconds(length);
}

// Trials of one of many simulations that are compared on the same failures: fewer for runs with many failures.
std::int64_t compared_trials(const GoodputRequest& request, const GoodputRun& run, double failures) {
  const double trials = std::clamp(failures / expected_failures(run), 16.0, 400.0);
  return std::min(request.trials, static_cast<std::int64_t>(trials));
}

OrderedJson quantiles_json(const std::vector<double>& ascending, double factor) {
  return {{"p5", factor * quantile(ascending, 0.05)},
          {"p50", factor * quantile(ascending, 0.5)},
          {"p95", factor * quantile(ascending, 0.95)}};
}

OrderedJson estimate_json(const Estimate& estimate) { return {{"mean", estimate.mean}, {"error", estimate.error}}; }

OrderedJson interval_json(const GoodputRequest& request, const GoodputSetting& setting, GoodputRun& run) {
  const double stall = to_seconds(run.stall);
  const double mtbf = setting.rollback_mtbf_s;
  OrderedJson out = {{"stall_s", run.stall}, {"durable_s", run.durable}, {"load_s", run.load}};
  if (setting.checkpoint_bytes > 0) out["bytes"] = setting.checkpoint_bytes;
  out["young_s"] = young_interval(stall, mtbf);
  out["daly_s"] = daly_interval(stall, mtbf);
  out["exact_s"] = exact_interval(stall, mtbf);
  if (request.sensitivity || setting.searched_interval) {
    const std::int64_t trials = compared_trials(request, run, 1.2e5);
    const IntervalSearch found = best_interval(run, setting.shortest, request.seed, trials, kFlat);
    if (setting.searched_interval) run.interval = found.best;
    out["best_s"] = found.best;
    out["flat_low_s"] = found.low;
    out["flat_high_s"] = found.high;
    out["best_goodput"] = found.goodput;
  }
  out["interval_s"] = run.interval;
  out["interval_steps"] = to_seconds(run.interval) / setting.step_s;
  return out;
}

struct Halving {
  const char* what;
  TimeUse use;  // without it in the run, halving does nothing
  std::function<void(GoodputRun&)> apply;
};

std::vector<Halving> halvings() {
  const auto causes = [](RandomTime FailureCause::*time) {
    return [time](GoodputRun& run) {
      for (FailureCause& cause : run.causes) cause.*time = (cause.*time).scaled(0.5);
    };
  };
  return {{"rate of failures", TimeUse::useful,
           [](GoodputRun& run) {
             for (FailureCause& cause : run.causes) cause.between = cause.between.scaled(2);
           }},
          {"stall of checkpoints", TimeUse::checkpoint, [](GoodputRun& run) { run.stall /= 2; }},
          {"detection", TimeUse::detection, causes(&FailureCause::detection)},
          {"diagnosis", TimeUse::diagnosis, causes(&FailureCause::diagnosis)},
          {"replacement", TimeUse::replacement, [](GoodputRun& run) { run.replacement = run.replacement.scaled(0.5); }},
          {"repair", TimeUse::waiting, causes(&FailureCause::repair)},
          {"init", TimeUse::init,
           [](GoodputRun& run) {
             run.init /= 2;
             run.reconfigure /= 2;
           }},
          {"load", TimeUse::load, [](GoodputRun& run) { run.load /= 2; }},
          {"stragglers", TimeUse::stragglers, [](GoodputRun& run) {
             for (FailureCause& cause : run.causes) cause.slowdown = 1 + (cause.slowdown - 1) / 2;
           }}};
}

OrderedJson sensitivity_json(const GoodputRequest& request, const GoodputRun& run, const GoodputSummary& summary) {
  OrderedJson rows = OrderedJson::array();
  const std::int64_t trials = compared_trials(request, run, 3e5);
  const double base = simulate_goodput(run, request.seed, trials).goodput.mean;
  for (const Halving& halving : halvings()) {
    if (summary.of(halving.use) <= 0) continue;
    GoodputRun changed = run;
    halving.apply(changed);
    rows.push_back(
        {{"halved", halving.what}, {"gain", simulate_goodput(changed, request.seed, trials).goodput.mean - base}});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const OrderedJson& a, const OrderedJson& b) {
    return a["gain"].get<double>() > b["gain"].get<double>();
  });
  return rows;
}

OrderedJson cost_json(const GoodputRequest& request, const GoodputSetting& setting, const GoodputSummary& summary) {
  const double hours = summary.wall_s.mean / 3600;
  const double gpu_hours = (setting.gpus + static_cast<double>(setting.run.spares) * setting.node_gpus) * hours;
  OrderedJson out = {{"gpu_hours", gpu_hours}, {"lost_gpu_hours", gpu_hours * (1 - summary.goodput.mean)}};
  if (request.gpu_hour_price > 0) out["dollars"] = gpu_hours * request.gpu_hour_price;
  if (request.kw_per_gpu > 0) {
    const double kwh = gpu_hours * request.kw_per_gpu * request.pue;
    out["kwh"] = kwh;
    if (request.kwh_price > 0) out["energy_dollars"] = kwh * request.kwh_price;
  }
  return out;
}

OrderedJson spares_json(const GoodputRequest& request, const GoodputSetting& setting, const GoodputRun& run,
                        const GoodputSummary& summary) {
  OrderedJson out = {{"nodes", run.spares}, {"waiting", summary.of(TimeUse::waiting)}};
  if (request.spare_target) {
    const std::int64_t trials = compared_trials(request, run, 3e5);
    const int most = static_cast<int>(std::max(1.0, setting.gpus / setting.node_gpus));
    out["target_waiting"] = *request.spare_target;
    out["nodes_for_target"] = spares_for(run, *request.spare_target, most, request.seed, trials);
  }
  return out;
}

OrderedJson causes_json(const GoodputRun& run) {
  OrderedJson rows = OrderedJson::array();
  for (const FailureCause& cause : run.causes) {
    rows.push_back({{"cause", cause.name},
                    {"kind", kFailureKinds[static_cast<std::size_t>(cause.kind)]},
                    {"mtbf_s", 1 / cause.failures_per_s()},
                    {"nodes", cause.nodes},
                    {"source", cause.source}});
  }
  return rows;
}

OrderedJson uses_json(const GoodputSummary& summary) {
  OrderedJson rows = OrderedJson::array();
  for (std::size_t use = 0; use < kTimeUses.size(); ++use) {
    rows.push_back({{"use", kTimeUses[use]},
                    {"fraction", summary.fractions[use]},
                    {"hours", summary.fractions[use] * summary.wall_s.mean / 3600}});
  }
  return rows;
}

std::string uses_text(const OrderedJson& results) {
  OrderedJson rows = OrderedJson::array();
  for (const OrderedJson& use : results["uses"]) {
    if (use["fraction"].get<double>() >= 5e-7) rows.push_back(use);
  }
  return table("<  use of the wall clock=  {use}|fraction={fraction:.3%}|hours={hours:.1f}", rows);
}

std::string sensitivity_text(const OrderedJson& results) {
  std::string out;
  for (const OrderedJson& row : results["sensitivity"]) {
    out += filled(out.empty() ? "{halved} {gain:+.2p}" : ", {halved} {gain:+.2p}", row);
  }
  return out.empty() ? "" : "  halving gains: " + out + "\n";
}

// The trial whose goodput is nearest to the median, the first of equals.
std::size_t median_trial(const GoodputSummary& summary) {
  const double median = quantile(summary.goodputs, 0.5);
  const auto distance = [&](const TrialResult& trial) {
    return std::abs(to_seconds(trial.of(TimeUse::useful)) / to_seconds(trial.wall) - median);
  };
  const auto nearest =
      std::min_element(summary.trials.begin(), summary.trials.end(),
                       [&](const TrialResult& a, const TrialResult& b) { return distance(a) < distance(b); });
  return static_cast<std::size_t>(nearest - summary.trials.begin());
}

}  // namespace

std::string assumptions_text(const OrderedJson& assumptions) {
  std::string out;
  for (const OrderedJson& row : assumptions) out += filled("    {value}  ({source})\n", row);
  return out.empty() ? "" : "  assumed, because not given:\n" + out;
}

OrderedJson goodput_json(const GoodputRequest& request, const GoodputSetting& setting) {
  GoodputRun run = setting.run;
  const OrderedJson checkpoints = interval_json(request, setting, run);
  const GoodputSummary summary = simulate_goodput(run, request.seed, request.trials);
  OrderedJson out = {{"schema", "sluice.goodput/1"},
                     {"gpus", setting.gpus},
                     {"replicas", run.replicas},
                     {"step_s", setting.step_s},
                     {"policy", request.policy},
                     {"failures", setting.failures},
                     {"trials", request.trials},
                     {"seed", request.seed},
                     {"goodput", estimate_json(summary.goodput)},
                     {"ettr", estimate_json(summary.ettr)},
                     {"mfu", known(setting.mfu * summary.goodput.mean)},
                     {"goodput_quantiles", quantiles_json(summary.goodputs, 1)},
                     {"failures_per_run", estimate_json(summary.failures)},
                     {"mtbf_s", summary.failures.mean > 0 ? OrderedJson(summary.wall_s.mean / summary.failures.mean)
                                                          : OrderedJson(nullptr)}};
  out["days"] = quantiles_json(summary.walls_s, 1.0 / 86400);
  out["days"]["mean"] = summary.wall_s.mean / 86400;
  if (run.work.count() > 0) out["work"] = {{"days", to_seconds(run.work) / 86400}, {"finished", summary.finished}};
  out["tokens"] = known(setting.tokens_per_step * summary.goodput.mean * summary.wall_s.mean / setting.step_s);
  out["median_trial"] = median_trial(summary);
  out["uses"] = uses_json(summary);
  out["checkpoints"] = checkpoints;
  out["spares"] = spares_json(request, setting, run, summary);
  out["cost"] = cost_json(request, setting, summary);
  out["sensitivity"] = request.sensitivity ? sensitivity_json(request, run, summary) : OrderedJson::array();
  out["causes"] = causes_json(run);
  out["assumptions"] = OrderedJson::array();
  for (const GoodputAssumption& each : setting.assumed) {
    out["assumptions"].push_back({{"value", each.what}, {"source", each.source}});
  }
  return out;
}

std::string goodput_text(const OrderedJson& results) {
  std::string out = filled(
      "goodput {goodput/mean:.2%} (90 % of runs: {goodput_quantiles/p5:.2%} to {goodput_quantiles/p95:.2%}; standard "
      "error {goodput/error:.1p}), ETTR {ettr/mean:.2%}[, MFU {mfu:.1%}]\n"
      "  {gpus} GPUs, {days/mean:.2f} days, iteration {step_s:t}, {trials} trials, policy {policy}\n"
      "  failures: {failures}; {failures_per_run/mean:.1f} per run, one in {mtbf_s:t}\n",
      results);
  if (results.contains("work")) {
    out += filled(
        "  {work/days:.2f} days of iterations take {days/p50:.2f} days (90 %: {days/p5:.2f} to {days/p95:.2f}); "
        "{work/finished:.1%} of runs finish\n",
        results);
  }
  out += uses_text(results);
  out += filled(
      "  checkpoints every {interval_s:t} ({interval_steps:.0f} iterations), stall {stall_s:t}, durable after "
      "{durable_s:t}, load {load_s:t}[, {bytes:B}]\n",
      results["checkpoints"]);
  out += filled("    Young {young_s:t}, Daly {daly_s:t}, exact {exact_s:t}\n", results["checkpoints"]);
  if (results["checkpoints"].contains("best_s")) {
    out += filled("    best {best_s:t}; within 0.1 points of it from {flat_low_s:t} to {flat_high_s:t}\n",
                  results["checkpoints"]);
  }
  out += filled("  spares: {nodes} nodes; the job waits {waiting:.3%} of the time", results["spares"]);
  if (results["spares"].contains("nodes_for_target")) {
    out += filled(", at most {target_waiting:.3%} with {nodes_for_target}", results["spares"]);
  }
  out += filled("\n  cost: {gpu_hours:k} GPU-hours with spares, {lost_gpu_hours:k} of them without progress",
                results["cost"]);
  for (const auto& [key, pattern] : {std::pair("dollars", ", ${dollars:k}"),
                                     {"kwh", ", {kwh:k} kWh"},
                                     {"energy_dollars", ", energy ${energy_dollars:k}"}}) {
    if (results["cost"].contains(key)) out += filled(pattern, results["cost"]);
  }
  return out + "\n" + sensitivity_text(results) + assumptions_text(results["assumptions"]);
}

std::string goodput_csv(const OrderedJson& results) { return csv("use,fraction,hours", results["uses"]); }

}  // namespace sluice::tools
