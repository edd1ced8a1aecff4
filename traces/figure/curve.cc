#include "traces/figure/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "model/errors.h"
#include "traces/figure/svg.h"

namespace sluice::traces {
namespace {

constexpr double kChartRight = 16;  // px to the right of the plot
constexpr double kChartTop = 17;    // px above the plot, without the title
constexpr double kChartTitleLine = 15;
constexpr double kChartTextSize = 10;
constexpr double kChartTitleSize = 10.5;
constexpr double kMaxNameLength = 130;  // px, of a rotated name of x

// Distinguishable for colour-blind readers.
constexpr std::array<Rgb, 7> kColours = {Rgb{0x33, 0x22, 0x88}, Rgb{0xD5, 0x5E, 0x00}, Rgb{0x00, 0x73, 0x5C},
                                         Rgb{0x9B, 0x59, 0xB6}, Rgb{0x66, 0x11, 0x00}, Rgb{0x33, 0x99, 0xCC},
                                         Rgb{0x77, 0x77, 0x77}};

std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// The position of each x on the axis, from 0 to 1.
struct Places {
  std::vector<double> at;
  bool by_value = false;
};

Places places_of(const std::vector<std::string>& x) {
  std::vector<double> values;
  for (const std::string& text : x) {
    if (const auto value = number(text)) values.push_back(*value);
  }
  const bool rising = values.size() == x.size() && std::is_sorted(values.begin(), values.end()) &&
                      std::adjacent_find(values.begin(), values.end()) == values.end();
  if (!rising || x.size() < 2) {
    Places places;
    for (std::size_t i = 0; i < x.size(); ++i) {
      places.at.push_back((static_cast<double>(i) + 0.5) / static_cast<double>(x.size()));
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
  return {std::move(values), true};
}

void draw_marker(Svg& svg, std::size_t series, double x, double y, bool hollow) {
  const std::string colour = hex(kColours[series % kColours.size()]);
  const std::string style =
      fmt::format("fill=\"{}\" stroke=\"{}\" stroke-width=\"1.5\"", hollow ? "#ffffff" : colour, colour);
  constexpr double r = 3.5;
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

class Chart {
 public:
  Chart(const CurveChart& chart, double width, double height)
      : chart_(chart), width_(width), height_(height), places_(places_of(chart.x)) {
    check();
    choose_axis();
    // Bold text is up to a tenth wider than text_width returns.
    title_ = wrapped(chart.title, 12, (width_ - left_ - kChartRight) / 1.1);
    top_ = kChartTop + kChartTitleLine * static_cast<double>(title_.size());
    height_ += top_ - kChartTop - kChartTitleLine;
    const double available = (width_ - left_ - kChartRight) * 0.94 / static_cast<double>(chart_.x.size());
    for (const std::string& x : chart_.x) longest_name_ = std::max(longest_name_, text_width(x, kChartTextSize));
    rotated_ = !places_.by_value && longest_name_ + 6 > available;
  }

  std::string draw() {
    Svg body;
    const double below = draw_axes(body);
    for (std::size_t s = 0; s < chart_.series.size(); ++s) draw_series(body, s);
    draw_gaps(body);
    const double end = draw_legend(body, below);
    Svg page(width_, end, chart_.title, fmt::format("{} over {}", chart_.y_label, chart_.x_label));
    page.raw(std::move(body).body());
    return std::move(page).take();
  }

 private:
  void check() {
    bool any = false;
    for (const CurveSeries& series : chart_.series) {
      if (series.points.size() != chart_.x.size()) {
        throw InputError(
            fmt::format("chart: expected {} points, one per x, got {}", chart_.x.size(), series.points.size()));
      }
      for (const CurvePoint& point : series.points) {
        any_gap_ |= !point.y;
        if (!point.y) continue;
        if (!(*point.y >= 0) || !std::isfinite(*point.y)) {
          throw InputError(fmt::format("chart: expected finite y values of at least 0, got {}", *point.y));
        }
        least_ = any ? std::min(least_, *point.y) : *point.y;
        most_ = std::max(most_, *point.y);
        any = true;
        any_hollow_ |= point.hollow;
      }
    }
    if (!any) throw InputError("chart: expected at least one point");
  }

  void choose_axis() {
    const bool above = least_ > 0.6 * most_;
    // With equal values the axis starts at 0.
    step_ = tick_step(above && most_ > least_ ? 1.3 * (most_ - least_) : most_, 7);
    low_ = above && most_ > least_ ? std::max(std::floor((least_ - 0.15 * (most_ - least_)) / step_), 0.0) * step_ : 0;
    high_ = most_ > 0 ? most_ + 0.06 * (most_ - low_) : 1;
    double widest = 0;
    for_ticks([&](double value) { widest = std::max(widest, text_width(tick_label(value, step_), kChartTextSize)); });
    left_ = 32 + widest;
  }

  template <typename Draw>
  void for_ticks(Draw draw) const {
    for (auto i = std::llround(low_ / step_); static_cast<double>(i) * step_ <= high_; ++i) {
      draw(static_cast<double>(i) * step_);
    }
  }

  double bottom() const { return height_ - 46; }
  double x_of(std::size_t i) const { return left_ + (width_ - left_ - kChartRight) * (0.03 + 0.94 * places_.at[i]); }
  double y_of(double value) const { return bottom() - (bottom() - top_) * (value - low_) / (high_ - low_); }

  // Returns the y position at which the legend may start.
  double draw_axes(Svg& svg) const {
    for (std::size_t i = 0; i < title_.size(); ++i) {
      svg.text(left_, 18 + kChartTitleLine * static_cast<double>(i), title_[i], 12, Svg::Anchor::start,
               "font-weight=\"bold\"");
    }
    for_ticks([&](double value) {
      const double y = y_of(value);
      svg.line(left_, y, width_ - kChartRight, y, "stroke=\"#dddddd\" stroke-width=\"0.6\"");
      svg.text(left_ - 6, y + 3.6, tick_label(value, step_), kChartTextSize, Svg::Anchor::end);
    });
    svg.line(left_, bottom(), width_ - kChartRight, bottom(), "stroke=\"#000000\" stroke-width=\"0.8\"");
    double last_label = -1e9;
    for (std::size_t i = 0; i < chart_.x.size(); ++i) {
      const double x = x_of(i);
      svg.line(x, bottom(), x, bottom() + 4, "stroke=\"#000000\" stroke-width=\"0.8\"");
      if (rotated_) {
        svg.rotated_text(x + 4, bottom() + 12, -40, shortened(chart_.x[i], kChartTextSize, kMaxNameLength),
                         kChartTextSize, Svg::Anchor::end);
        continue;
      }
      const double half = text_width(chart_.x[i], kChartTextSize) / 2;
      if (x - half < last_label + 6) continue;  // skip a number if there is no room
      svg.text(x, bottom() + 16, chart_.x[i], kChartTextSize, Svg::Anchor::middle);
      last_label = x + half;
    }
    // sin 40 degrees
    const double names = rotated_ ? 0.643 * std::min(longest_name_, kMaxNameLength) + 10 : 12;
    const double title = bottom() + names + 19;
    svg.text((left_ + width_ - kChartRight) / 2, title, chart_.x_label, kChartTitleSize, Svg::Anchor::middle);
    svg.rotated_text(14, (top_ + bottom()) / 2, -90, chart_.y_label, kChartTitleSize, Svg::Anchor::middle);
    return title + 10;
  }

  void draw_series(Svg& svg, std::size_t s) const {
    const auto& points = chart_.series[s].points;
    std::string data;
    bool broken = true;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].y) data += fmt::format("{}{} {}", broken ? "M" : "L", px(x_of(i)), px(y_of(*points[i].y)));
      broken = !points[i].y;
    }
    if (!data.empty()) {
      svg.path(data,
               fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.3\"{}", hex(kColours[s % kColours.size()]),
                           places_.by_value ? "" : " stroke-dasharray=\"3 3\""));
    }
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (points[i].y) draw_marker(svg, s, x_of(i), y_of(*points[i].y), points[i].hollow);
    }
  }

  static void draw_cross(Svg& svg, double x, double y, Rgb colour) {
    svg.path(fmt::format("M{} {}l6 6m0 -6l-6 6", px(x - 3), px(y - 3)),
             fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"", hex(colour)));
  }
  // Draws a cross per missing value in the colour of its series, stacked upwards.
  void draw_gaps(Svg& svg) const {
    if (chart_.gap_note.empty()) return;
    for (std::size_t i = 0; i < chart_.x.size(); ++i) {
      double y = bottom() - 7;
      for (std::size_t s = 0; s < chart_.series.size(); ++s) {
        if (chart_.series[s].points[i].y) continue;
        draw_cross(svg, x_of(i), y, kColours[s % kColours.size()]);
        y -= 9;
      }
    }
  }

  // Returns the height of the picture.
  double draw_legend(Svg& svg, double y) const {
    double x = left_;
    bool used = false;
    const auto add = [&](std::string_view text, auto mark) {
      if (text.empty()) return;
      const double width = 14 + text_width(text, kChartTextSize);
      if (x > left_ && x + width > width_ - kChartRight) {
        x = left_;
        y += 16;
      }
      mark(x + 5, y + 6);
      svg.text(x + 14, y + 6 + 3.6, text, kChartTextSize);
      x += width + 14;
      used = true;
    };
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      add(chart_.series[s].name, [&](double at_x, double at_y) { draw_marker(svg, s, at_x, at_y, false); });
    }
    if (any_hollow_) {
      add(chart_.hollow_note, [&](double at_x, double at_y) { draw_marker(svg, 0, at_x, at_y, true); });
    }
    if (any_gap_)
      add(chart_.gap_note, [&](double at_x, double at_y) { draw_cross(svg, at_x, at_y, {0x77, 0x77, 0x77}); });
    return used ? y + 20 : y;
  }

  const CurveChart& chart_;
  double width_ = 0;
  double height_ = 0;
  Places places_;
  std::vector<std::string> title_;  // lines
  double left_ = 0;
  double top_ = 0;
  double least_ = 0;
  double most_ = 0;
  double low_ = 0;  // of the y axis
  double high_ = 1;
  double step_ = 1;
  double longest_name_ = 0;
  bool rotated_ = false;  // whether names of x are rotated to fit
  bool any_hollow_ = false;
  bool any_gap_ = false;
};

}  // namespace

std::string svg_curve(const CurveChart& chart, double width, double height) {
  return Chart(chart, width, height).draw();
}

}  // namespace sluice::traces
