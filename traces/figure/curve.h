#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::traces {

struct CurvePoint {
  std::optional<double> y;  // nullopt: no value; the line is interrupted
  bool hollow = false;      // drawn hollow, e.g. an infeasible configuration
};

struct CurveSeries {
  std::string name;
  std::vector<CurvePoint> points;  // one per x
};

// A line chart. If all of `x` are ascending numbers they are placed by value (on a logarithmic axis if each is at least
// 1.5 times the previous one), otherwise equidistantly in order, with dashed lines. The y axis starts at 0, or at a
// round value if all y are above 60 % of the largest.
struct CurveChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::string hollow_note;  // legend text for hollow points
  std::string gap_note;     // legend text for missing values, which are crosses above the x axis in the series' colour
  std::vector<std::string> x;
  std::vector<CurveSeries> series;
};

// Returns the chart as SVG, `width` px wide and `height` px high, excluding further lines of the title, the legend and
// long names of x. Series
// differ in marker shape and colour. Throws InputError if there are no points, a y is negative or not finite, or a
// series and x differ in length.
inline constexpr double kCurveWidth = 560;
std::string svg_curve(const CurveChart& chart, double width = kCurveWidth, double height = 340);

}  // namespace sluice::traces
