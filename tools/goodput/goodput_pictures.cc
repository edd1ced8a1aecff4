#include "tools/goodput/goodput_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/to_size.h"
#include "traces/figure/svg.h"

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

}  // namespace sluice::tools
