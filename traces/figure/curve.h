#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::traces {

struct CurvePoint {
  std::optional<double> y;  // none: there is no answer, and the line is broken
  bool hollow = false;      // drawn apart: an answer that will not do
};

struct CurveSeries {
  std::string name;
  std::vector<CurvePoint> points;  // one for each x
};

// A line chart. Where all of `x` are numbers they are placed by value (by logarithm where each is at least 1.5 times
// the one before), otherwise side by side in their order, with dashed lines. The axis of y begins at 0, or, where all y
// are above six tenths of the largest, at a round value below them.
struct CurveChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::string hollow_note;  // what a hollow point means, for the legend
  std::string gap_note;     // what it means that there is no answer; a cross above the axis, in the series' colour
  std::vector<std::string> x;
  std::vector<CurveSeries> series;
};

// The chart as SVG, `width` px wide and, without the legend and long names of x, `height` high. Series differ in the
// shape of their points as well as in colour. Throws InputError if there is nothing to draw, a y is below 0 or not
// finite, or series and x differ in number.
std::string svg_curve(const CurveChart& chart, double width = 560, double height = 340);

}  // namespace sluice::traces
