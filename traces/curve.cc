#include "traces/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "model/errors.h"
#include "traces/svg.h"

namespace sluice {
namespace {

constexpr double kLeft = 76;
constexpr double kRight = 20;
constexpr double kTop = 36;

// Apart for colour-blind readers too.
constexpr std::array<Rgb, 7> kColours = {Rgb{0x33, 0x22, 0x88}, Rgb{0xD5, 0x5E, 0x00}, Rgb{0x00, 0x73, 0x5C},
                                         Rgb{0x9B, 0x59, 0xB6}, Rgb{0x66, 0x11, 0x00}, Rgb{0x33, 0x99, 0xCC},
                                         Rgb{0x77, 0x77, 0x77}};

std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Where each x stands, from 0 to 1.
std::vector<double> places_of(const std::vector<std::string>& x) {
  std::vector<double> values;
  for (const std::string& text : x) {
    if (const auto value = number(text)) values.push_back(*value);
  }
  const bool rising = values.size() == x.size() && std::is_sorted(values.begin(), values.end()) &&
                      std::adjacent_find(values.begin(), values.end()) == values.end();
  if (!rising || x.size() < 2) {
    std::vector<double> places;
    for (std::size_t i = 0; i < x.size(); ++i) {
      places.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(x.size()));
    }
    return places;
  }
  bool doubles = values.front() > 0;
  for (std::size_t i = 1; i < values.size(); ++i) doubles = doubles && values[i] >= 1.5 * values[i - 1];
  if (doubles) {
    for (double& value : values) value = std::log(value);
  }
  const double first = values.front();
  const double range = values.back() - first;
  for (double& value : values) value = (value - first) / range;
  return values;
}

void draw_marker(Svg& svg, std::size_t series, double x, double y, bool hollow) {
  const std::string colour = hex(kColours[series % kColours.size()]);
  const std::string style =
      fmt::format("fill=\"{}\" stroke=\"{}\" stroke-width=\"1.5\"", hollow ? "#ffffff" : colour, colour);
  constexpr double r = 4;
  switch (series % 4) {
    case 0: svg.raw(fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" {}/>\n", px(x), px(y), px(r), style)); break;
    case 1: svg.rect(x - r, y - r, 2 * r, 2 * r, style); break;
    case 2:
      svg.path(fmt::format("M{} {}l{} {}h{}Z", px(x), px(y - r - 1), px(r + 1), px(2 * r), px(-2 * r - 2)), style);
      break;
    default:
      svg.path(fmt::format("M{0} {1}l{2} {2}l-{2} {2}l-{2} -{2}Z", px(x), px(y - r - 1), px(r + 1)), style);
      break;
  }
}

}  // namespace

std::string svg_curve(const CurveChart& chart, double width, double height) {
  double most = 0;
  bool any = false;
  bool any_hollow = false;
  for (const CurveSeries& series : chart.series) {
    if (series.points.size() != chart.x.size()) {
      throw InputError(fmt::format("a curve of {} points over {} values", series.points.size(), chart.x.size()));
    }
    for (const CurvePoint& point : series.points) {
      if (!point.y) continue;
      any = true;
      any_hollow |= point.hollow;
      most = std::max(most, *point.y);
    }
  }
  if (!any) throw InputError("a curve needs at least one point");
  // Below the axis: tick labels, its title, and the legend.
  const std::size_t lines = chart.series.size() + (any_hollow ? 1 : 0);
  const double bottom = height - 52;
  const double total = height + (lines > 1 ? 16 * static_cast<double>(lines) : 0);
  const double plot_width = width - kLeft - kRight;
  const double top = most > 0 ? most * 1.06 : 1;
  const auto y_of = [&](double value) { return bottom - (bottom - kTop) * value / top; };
  const std::vector<double> places = places_of(chart.x);
  const auto x_of = [&](std::size_t i) { return kLeft + plot_width * (0.03 + 0.94 * places[i]); };

  Svg svg(width, total, chart.title, fmt::format("{} over {}", chart.y_label, chart.x_label));
  svg.text(kLeft, 20, chart.title, 13, Svg::Anchor::start, "font-weight=\"bold\"");
  const double step = tick_step(top, 8);
  for (int i = 0; static_cast<double>(i) * step <= top; ++i) {
    const double y = y_of(static_cast<double>(i) * step);
    svg.line(kLeft, y, width - kRight, y, "stroke=\"#d9d9d9\" stroke-width=\"0.6\"");
    svg.text(kLeft - 6, y + 3.5, fmt::format("{:.6g}", static_cast<double>(i) * step), 10, Svg::Anchor::end);
  }
  svg.line(kLeft, bottom, width - kRight, bottom, "stroke=\"#000000\" stroke-width=\"0.8\"");
  double last_label = -1e9;
  for (std::size_t i = 0; i < chart.x.size(); ++i) {
    svg.line(x_of(i), bottom, x_of(i), bottom + 4, "stroke=\"#000000\" stroke-width=\"0.8\"");
    const double half = text_width(chart.x[i], 10) / 2;
    if (x_of(i) - half < last_label + 6) continue;  // no room behind the one before
    svg.text(x_of(i), bottom + 16, chart.x[i], 10, Svg::Anchor::middle);
    last_label = x_of(i) + half;
  }
  svg.text(kLeft + plot_width / 2, bottom + 34, chart.x_label, 11, Svg::Anchor::middle);
  svg.raw(fmt::format(
      "<text transform=\"translate(16 {}) rotate(-90)\" font-size=\"11\" text-anchor=\"middle\">{}</text>\n",
      px((kTop + bottom) / 2), escaped_xml(chart.y_label)));

  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const auto& points = chart.series[s].points;
    std::string data;
    bool broken = true;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (!points[i].y) {
        broken = true;
        continue;
      }
      data += fmt::format("{}{} {}", broken ? "M" : "L", px(x_of(i)), px(y_of(*points[i].y)));
      broken = false;
    }
    svg.path(data, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"", hex(kColours[s % kColours.size()])));
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].y) draw_marker(svg, s, x_of(i), y_of(*points[i].y), points[i].hollow);
    }
  }
  if (lines < 2) return std::move(svg).take();
  double y = bottom + 54;
  for (std::size_t s = 0; s < chart.series.size(); ++s, y += 16) {
    draw_marker(svg, s, kLeft + 6, y - 4, false);
    svg.text(kLeft + 18, y, chart.series[s].name, 11);
  }
  if (any_hollow) {
    draw_marker(svg, 0, kLeft + 6, y - 4, true);
    svg.text(kLeft + 18, y, chart.hollow_note, 11);
  }
  return std::move(svg).take();
}

}  // namespace sluice
