#include "tools/goodput/goodput_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "model/to_size.h"
#include "sim/goodput/closed_forms.h"
#include "tools/command/version.h"
#include "traces/figure/svg.h"
#include "traces/report/report.h"

namespace sluice::tools {
namespace {

constexpr double kWidth = 900, kLeft = 120, kRight = 20;  // px
constexpr double kPlot = kWidth - kLeft - kRight;
constexpr double kSize = 11;  // of text
constexpr double kCurveTop = 34, kCurveHeight = 190;
constexpr double kBandTop = kCurveTop + kCurveHeight + 36, kBandHeight = 40;
constexpr double kRowsTop = kBandTop + kBandHeight + 14, kRow = 15;
constexpr int kColumns = static_cast<int>(kPlot);
constexpr std::size_t kMostRows = 8;  // of causes

// By TimeUse.
constexpr std::array<Rgb, kTimeUses.size()> kUseColours = {
    Rgb{0x00, 0x73, 0x5C}, {0x77, 0x77, 0x77}, {0x66, 0xCC, 0xEE}, {0x66, 0x11, 0x00}, {0xD5, 0x5E, 0x00},
    {0xFF, 0xD2, 0x3F},    {0xD6, 0xA2, 0xE8}, {0xCC, 0x33, 0x66}, {0x33, 0x22, 0x88}, {0x9B, 0x59, 0xB6},
    {0x88, 0xCC, 0x88},    {0xBB, 0xAA, 0x33}, {0xBB, 0xBB, 0xBB}};

std::size_t index_of(TimeUse use) { return static_cast<std::size_t>(use); }
std::string fill(TimeUse use) {
  return fmt::format(R"(fill="{}" shape-rendering="crispEdges")", hex(kUseColours[index_of(use)]));
}
std::string text_of(TimeUse use) { return std::string(kTimeUses[index_of(use)]); }
double days(Duration time) { return to_seconds(time) / 86400; }

// The time of each use within each column of the picture.
std::vector<TimeByUse> columns(const std::vector<TrialSpan>& spans, Duration wall) {
  std::vector<TimeByUse> out(to_size(kColumns));
  const auto edge = [&](int column) { return wall * column / kColumns; };
  int column = 0;
  for (const TrialSpan& span : spans) {
    for (Duration at = span.begin; at < span.end;) {
      while (column + 1 < kColumns && edge(column + 1) <= at) ++column;
      const Duration end = column + 1 < kColumns ? std::min(span.end, edge(column + 1)) : span.end;
      out[to_size(column)][index_of(span.use)] += end - at;
      at = end;
    }
  }
  return out;
}

std::size_t median_trial(const OrderedJson& results) { return results["median_trial"].get<std::size_t>(); }

// A picture of a run, in which all parts share the axis of time.
class RunPicture {
 public:
  RunPicture(const GoodputRun& run, const TrialResult& result, const TrialHistory& history)
      : run_(run), result_(result), history_(history), step_(tick_step(days(result.wall), 12)) {}

  std::string svg(const std::string& title) {
    const std::vector<std::size_t> causes = causes_by_count();
    const double legend = kRowsTop + kRow * static_cast<double>(causes.size()) + 16;
    Svg out(kWidth, legend + 36, title, "Progress, use of time and failures of a training run");
    out.text(kLeft, 20, shortened(title, 13, kPlot), 13, Svg::Anchor::start, R"(font-weight="bold")");
    axes(out);
    curve(out);
    band(out);
    for (std::size_t i = 0; i < causes.size(); ++i) ticks(out, causes[i], kRowsTop + kRow * static_cast<double>(i));
    this->legend(out, legend);
    return std::move(out).take();
  }

 private:
  double x(Duration time) const { return kLeft + kPlot * days(time) / days(result_.wall); }
  double y(Duration progress) const { return kCurveTop + kCurveHeight * (1 - days(progress) / days(result_.wall)); }

  void axes(Svg& out) const {
    const double bottom = kCurveTop + kCurveHeight;
    for (int i = 0; i * step_ <= days(result_.wall) * (1 + 1e-9); ++i) {
      const double day = i * step_;
      const double part = day / days(result_.wall);
      out.line(kLeft + kPlot * part, kCurveTop, kLeft + kPlot * part, bottom, R"(stroke="#e0e0e0")");
      out.text(kLeft + kPlot * part, bottom + 14, tick_label(day, step_), kSize, Svg::Anchor::middle);
    }
    const double step = tick_step(days(result_.wall), 5);
    for (int i = 0; i * step <= days(result_.wall) * (1 + 1e-9); ++i) {
      const double day = i * step;
      const double at = bottom - kCurveHeight * day / days(result_.wall);
      out.line(kLeft, at, kLeft + kPlot, at, R"(stroke="#e0e0e0")");
      out.text(kLeft - 6, at + 4, tick_label(day, step), kSize, Svg::Anchor::end);
    }
    out.text(kLeft + kPlot, bottom + 28, "days", kSize, Svg::Anchor::end);
    out.rotated_text(kLeft - 48, kCurveTop + kCurveHeight / 2, -90, "days of progress", kSize, Svg::Anchor::middle);
  }

  // At most a few points per px.
  void curve(Svg& out) const {
    out.line(kLeft, kCurveTop + kCurveHeight, kLeft + kPlot, kCurveTop, R"(stroke="#999999" stroke-dasharray="4 3")");
    std::string path = fmt::format("M{} {}", px(kLeft), px(kCurveTop + kCurveHeight));
    double last = kLeft;
    const std::vector<TrialSpan>& spans = history_.spans;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (x(spans[i].end) - last < 0.25 && i + 1 < spans.size()) continue;
      last = x(spans[i].end);
      path += fmt::format("L{} {}", px(last), px(y(spans[i].progress)));
    }
    out.path(path, R"(fill="none" stroke="#00735C" stroke-width="1.5")");
  }

  void band(Svg& out) const {
    out.text(kLeft - 6, kBandTop + kBandHeight / 2 + 4, "use of time", kSize, Svg::Anchor::end);
    const std::vector<TimeByUse> shares = columns(history_.spans, result_.wall);
    for (std::size_t first = 0; first < shares.size();) {
      Duration sum{};
      for (const Duration time : shares[first]) sum += time;
      std::size_t end = first + 1;
      const auto only = std::find(shares[first].begin(), shares[first].end(), sum);
      // Columns of one use are one rectangle.
      while (only != shares[first].end() && end < shares.size() && same_use(shares[first], shares[end])) ++end;
      double top = kBandTop + kBandHeight;
      for (std::size_t use = 0; use < kTimeUses.size(); ++use) {
        const double height = sum.count() > 0 ? kBandHeight * to_seconds(shares[first][use]) / to_seconds(sum) : 0;
        if (height <= 0) continue;
        top -= height;
        out.rect(kLeft + static_cast<double>(first), top, static_cast<double>(end - first), height,
                 fill(static_cast<TimeUse>(use)));
      }
      first = end;
    }
  }
  static bool same_use(const TimeByUse& a, const TimeByUse& b) {
    for (std::size_t use = 0; use < a.size(); ++use) {
      if ((a[use].count() > 0) != (b[use].count() > 0)) return false;
    }
    return true;
  }

  std::vector<std::size_t> causes_by_count() const {
    std::vector<std::size_t> counts(run_.causes.size());
    for (const TrialFailure& failure : history_.failures) ++counts[failure.cause];
    std::vector<std::size_t> out;
    for (std::size_t cause = 0; cause < counts.size(); ++cause) {
      if (counts[cause] > 0) out.push_back(cause);
    }
    std::stable_sort(out.begin(), out.end(), [&](std::size_t a, std::size_t b) { return counts[a] > counts[b]; });
    out.resize(std::min(out.size(), kMostRows));
    return out;
  }

  void ticks(Svg& out, std::size_t cause, double top) const {
    std::string path;
    double last = -1;
    int count = 0;
    for (const TrialFailure& failure : history_.failures) {
      if (failure.cause != cause) continue;
      ++count;
      if (x(failure.at) - last < 0.25) continue;
      last = x(failure.at);
      path += fmt::format("M{} {}v{}", px(last), px(top), px(kRow - 5));
    }
    out.path(path, R"(fill="none" stroke="#444444" stroke-width="0.8")");
    const std::string label = fmt::format("{} {}", count, run_.causes[cause].name);
    out.text(kLeft - 6, top + 9, shortened(label, kSize - 1, kLeft - 10), kSize - 1, Svg::Anchor::end);
  }

  void legend(Svg& out, double top) const {
    double left = kLeft;
    for (std::size_t i = 0; i < kTimeUses.size(); ++i) {
      const auto use = static_cast<TimeUse>(i);
      const double share = days(result_.of(use)) / days(result_.wall);
      if (share < 5e-4) continue;
      const std::string text = fmt::format("{} {:.1f} %", text_of(use), 100 * share);
      const double width = 16 + text_width(text, kSize) + 14;
      if (left + width > kWidth) {
        left = kLeft;
        top += 17;
      }
      out.rect(left, top - 9, 11, 11, fill(use));
      out.text(left + 15, top, text, kSize);
      left += width;
    }
  }

  const GoodputRun& run_;
  const TrialResult& result_;
  const TrialHistory& history_;
  double step_;  // of days
};

nlohmann::json event(const char* phase, int track, std::string_view name, Duration at) {
  return {{"ph", phase}, {"pid", 1}, {"tid", track}, {"name", name}, {"ts", to_seconds(at) * 1e6}};
}

nlohmann::json track_name(int track, const char* name) {
  return {{"ph", "M"}, {"pid", 1}, {"tid", track}, {"name", "thread_name"}, {"args", {{"name", name}}}};
}

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

MedianRun::MedianRun(const GoodputRequest& request, const GoodputSetting& setting, const OrderedJson& results)
    : results_(results), run_(setting.run) {
  run_.interval = from_seconds(results["checkpoints"]["interval_s"].get<double>(), "interval");
  result_ = simulate_trial(run_, request.seed, median_trial(results), &history_);
}

std::string MedianRun::svg() const {
  const std::string title =
      fmt::format("goodput {:.1f} %: run {} of {}, the median; {:.4g} days, {} failures, {:.0f} GPUs",
                  100 * to_seconds(result_.of(TimeUse::useful)) / to_seconds(result_.wall), median_trial(results_) + 1,
                  results_["trials"].get<int>(), days(result_.wall), result_.failures, results_["gpus"].get<double>());
  return RunPicture(run_, result_, history_).svg(title);
}

std::string MedianRun::chrome_trace() const {
  nlohmann::json events = {track_name(1, "use of time"), track_name(2, "failures")};
  for (const TrialSpan& span : history_.spans) {
    events.push_back(event("X", 1, kTimeUses[index_of(span.use)], span.begin));
    events.back()["dur"] = to_seconds(span.end - span.begin) * 1e6;
    events.back()["args"] = {{"progress_days", days(span.progress)}};
    events.push_back(event("C", 0, "replicas", span.begin));
    events.back()["args"] = {{"replicas", run_.replicas - span.missing}};
  }
  for (const TrialFailure& failure : history_.failures) {
    const FailureCause& cause = run_.causes[failure.cause];
    events.push_back(event("i", 2, cause.name, failure.at));
    events.back()["s"] = "t";
    events.back()["args"] = {{"kind", kFailureKinds[static_cast<std::size_t>(cause.kind)]},
                             {"lost_hours", to_seconds(failure.lost) / 3600}};
  }
  return nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

std::string MedianRun::page(const std::string& command_line) const {
  const auto metric = [&](const char* label, const char* value, const char* explanation) {
    return traces::ReportMetric{
        .label = label, .value = filled(value, results_), .explanation = filled(explanation, results_)};
  };
  const auto rows = [&](const char* key, std::initializer_list<const char*> cells) {
    std::vector<std::vector<std::string>> out;
    for (const OrderedJson& row : results_[key]) {
      std::vector<std::string>& texts = out.emplace_back();
      for (const char* cell : cells) texts.push_back(filled(cell, row));
    }
    return out;
  };
  traces::ReportPage page{
      .title = filled("Training run on {gpus} GPUs: goodput {goodput/mean:.1%}", results_),
      .command_line = command_line,
      .version = kVersion,
      .headline = {metric("Goodput", "{goodput/mean:.2%}",
                          "90 % of runs: {goodput_quantiles/p5:.2%} to {goodput_quantiles/p95:.2%}"),
                   metric("ETTR", "{ettr/mean:.2%}", "as goodput, where slower iterations count as productive"),
                   metric("Iteration", "{step_s:t}", "policy {policy}[, MFU with failures {mfu:.1%}]"),
                   metric("Failures", "{failures_per_run/mean:.1f} per run", "one in {mtbf_s:t}; {failures}"),
                   metric("Duration", "{days/mean:.2f} days", "90 % of runs: {days/p5:.2f} to {days/p95:.2f}"),
                   metric("Checkpoints", "every {checkpoints/interval_s:t}",
                          "stall {checkpoints/stall_s:t}, durable after {checkpoints/durable_s:t}[; best "
                          "{checkpoints/best_s:t}]"),
                   metric("Spares", "{spares/nodes} nodes", "the job waits {spares/waiting:.3%} of the time"),
                   metric("Cost", "{cost/gpu_hours:k} GPU-hours",
                          "{cost/lost_gpu_hours:k} of them without progress[, ${cost/dollars:k}][, {cost/kwh:k} kWh]")},
      .picture = svg(),
      .picture_title = filled("The median run of {trials}", results_),
      .tables = {{"Use of the wall clock",
                  {"use", "fraction", "hours"},
                  rows("uses", {"{use}", "{fraction:.3%}", "{hours:.1f}"})},
                 {"What halving a cause gains", {"cause", "goodput"}, rows("sensitivity", {"{halved}", "{gain:+.2p}"})},
                 {"Failures",
                  {"cause", "kind", "one in", "nodes", "source"},
                  rows("causes", {"{cause}", "{kind}", "{mtbf_s:t}", "{nodes}", "{source}"})},
                 {"Assumed, because not given", {"value", "source"}, rows("assumptions", {"{value}", "{source}"})}}};
  return traces::page_html(page);
}

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
