#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "benchmarks/accuracy/score.h"
#include "traces/report/report_tables.h"

namespace sluice::bench::accuracy {
namespace {

using traces::html_escaped;

constexpr double kSize = 420;   // px, of a plot without its margins
constexpr double kMargin = 72;  // px
constexpr const char* kColors[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777"};

constexpr const char* kStyle = R"(
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: 2px 10px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .text { text-align: left; }
svg { display: block; max-width: 100%; height: auto; }
circle { fill-opacity: .6; }
circle:hover, circle:focus { stroke: #000; stroke-width: 2; fill-opacity: 1; outline: none; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .4em; }
)";

std::string or_dash(const std::string& text) { return text.empty() ? "-" : html_escaped(text); }

// A logarithmic axis over all measured and predicted values of one unit.
struct Axis {
  double low = 1;
  double high = 10;

  double at(double value) const { return kSize * std::log(value / low) / std::log(high / low); }
};

Axis axis_of(const std::vector<const Comparison*>& points) {
  Axis axis{points.front()->measured, points.front()->measured};
  for (const Comparison* point : points) {
    axis.low = std::min({axis.low, point->measured, point->predicted});
    axis.high = std::max({axis.high, point->measured, point->predicted});
  }
  axis.low /= 1.2;
  axis.high *= 1.2;
  return axis;
}

// The line predicted = factor x measured, within the plot.
std::string ratio_line(const Axis& axis, double factor, const char* style) {
  const double from = std::max(axis.low, axis.low / factor);
  const double to = std::min(axis.high, axis.high / factor);
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", axis.at(from),
                     kSize - axis.at(factor * from), axis.at(to), kSize - axis.at(factor * to), style);
}

std::string axis_labels(const Axis& axis, const std::string& unit) {
  std::string out;
  const auto to = std::back_inserter(out);
  const double decade = std::pow(10, std::floor(std::log10(axis.low)));
  for (double power = decade; power <= axis.high; power *= 10) {
    for (const int step : {1, 2, 5}) {
      const double value = step * power;
      if (value < axis.low || value > axis.high) continue;
      const double at = axis.at(value);
      fmt::format_to(to, "<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{:g}</text>\n", at, kSize + 18, value);
      fmt::format_to(to, "<text x=\"-8\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n", kSize - at + 4, value);
    }
  }
  fmt::format_to(to, "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">measured, {}</text>\n", kSize / 2,
                 kSize + 40, html_escaped(unit));
  fmt::format_to(to, "<text transform=\"translate(-60 {:.0f}) rotate(-90)\" text-anchor=\"middle\">predicted</text>\n",
                 kSize / 2);
  return out;
}

std::string plot(const std::vector<const Comparison*>& points, const std::vector<std::string>& groups) {
  const Axis axis = axis_of(points);
  const double full = kSize + kMargin + 20;
  std::string out = fmt::format(
      "<svg viewBox=\"{:.0f} -10 {:.0f} {:.0f}\" width=\"{:.0f}\" role=\"img\" font-size=\"12\" "
      "aria-label=\"predicted against measured\">\n<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"none\" "
      "stroke=\"#999\"/>\n",
      -kMargin, full, full, full, kSize, kSize);
  out += ratio_line(axis, 1, "stroke=\"#333\"");
  out += ratio_line(axis, 1.1, "stroke=\"#aaa\" stroke-dasharray=\"4 3\"");
  out += ratio_line(axis, 1 / 1.1, "stroke=\"#aaa\" stroke-dasharray=\"4 3\"");
  out += axis_labels(axis, points.front()->unit);
  for (const Comparison* point : points) {
    const auto group = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), point->group) - groups.begin());
    fmt::format_to(std::back_inserter(out),
                   "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\" tabindex=\"0\"><title>{:+.2f} %: measured "
                   "{:.5g} {}, predicted {:.5g} {}\n{}\n{}\n{}</title></circle>\n",
                   axis.at(point->measured), kSize - axis.at(point->predicted), kColors[group % std::size(kColors)],
                   100 * point->error(), point->measured, html_escaped(point->unit), point->predicted,
                   html_escaped(point->unit), html_escaped(point->group), html_escaped(point->place),
                   html_escaped(point->setting));
  }
  return out + "</svg>\n";
}

// One plot per unit: quantities of different units have no common axis. A logarithmic axis has no room for 0.
std::string plots(const TableScore& score) {
  std::vector<std::string> units;
  std::vector<std::string> groups;
  const auto note = [](std::vector<std::string>& known, const std::string& text) {
    if (std::find(known.begin(), known.end(), text) == known.end()) known.push_back(text);
  };
  for (const Comparison& one : score.comparisons) {
    note(units, one.unit);
    note(groups, one.group);
  }
  std::string out = "<p>";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "<span class=\"key\" style=\"background:{}\"></span>{} &nbsp; ",
                   kColors[i % std::size(kColors)], html_escaped(groups[i]));
  }
  out += "</p>\n";
  for (const std::string& unit : units) {
    std::vector<const Comparison*> points;
    for (const Comparison& one : score.comparisons) {
      if (one.unit == unit && one.measured > 0 && one.predicted > 0) points.push_back(&one);
    }
    if (!points.empty()) out += plot(points, groups);
  }
  return out;
}

}  // namespace

std::string score_page(const std::vector<std::pair<std::string, TableScore>>& scores) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Accuracy of predictions</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<h1>Accuracy of predictions</h1>\n<p>Each point is a row: hover over it for "
      "its values. The line is predicted = measured, the dashed lines are 10 % above and below.</p>\n<table>\n<tr><th>"
      "table</th><th class=\"text\">error of</th><th>GPU</th><th>precision</th><th>rows</th><th>mean</th><th>bias</th>"
      "<th>worst</th><th class=\"text\">worst row</th></tr>\n",
      kStyle);
  const auto to = std::back_inserter(out);
  for (const auto& [name, score] : scores) {
    for (const Summary& of : summaries(score)) {
      fmt::format_to(to,
                     "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2f} %</td>"
                     "<td>{:+.2f} %</td><td>{:.2f} %</td><td class=\"text\">{}</td></tr>\n",
                     html_escaped(name), html_escaped(of.group), or_dash(of.gpu), or_dash(of.precision), of.count,
                     100 * of.mean, 100 * of.signed_mean, 100 * of.worst, html_escaped(row_of(of.worst_row)));
    }
  }
  out += "</table>\n";
  for (const auto& [name, score] : scores) {
    const std::string fits = fits_text(score);
    fmt::format_to(to, "<h2>{}</h2>\n{}{}", html_escaped(name), fits.empty() ? "" : "<p>" + fits + "</p>\n",
                   plots(score));
    if (!score.skipped.empty()) fmt::format_to(to, "<p>{} rows skipped</p>\n", score.skipped.size());
  }
  return out + "</body>\n</html>\n";
}

}  // namespace sluice::bench::accuracy
