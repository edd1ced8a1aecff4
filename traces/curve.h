#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sluice {

struct CurvePoint {
  std::optional<double> y;  // none: there is no answer, and the line is broken
  bool hollow = false;      // drawn apart: an answer that will not do
};

struct CurveSeries {
  std::string name;
  std::vector<CurvePoint> points;  // one for each x
};

// A line chart. Where all of `x` are numbers they are placed by value (by logarithm where each is at least 1.5 times
// the one before), otherwise side by side in their order.
struct CurveChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::string hollow_note;  // what a hollow point means, for the legend
  std::vector<std::string> x;
  std::vector<CurveSeries> series;
};

// The chart as SVG. Series differ in the shape of their points as well as in colour. Throws InputError if there is
// nothing to draw, or series and x differ in number.
std::string svg_curve(const CurveChart& chart, double width = 720, double height = 420);

}  // namespace sluice
