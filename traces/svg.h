#pragma once

#include <string>
#include <string_view>

#include "model/units.h"
#include "traces/palette.h"

namespace sluice {

// Puts together an SVG picture: plain shapes and text that browsers, rsvg-convert and Inkscape draw alike. Lengths are
// in px.
class Svg {
 public:
  enum class Anchor { start, middle, end };

  Svg(double width, double height, std::string_view title, std::string_view description);

  void rect(double x, double y, double width, double height, const std::string& style);
  void line(double x1, double y1, double x2, double y2, const std::string& style);
  void path(const std::string& data, const std::string& style);
  void text(double x, double y, std::string_view text, double size, Anchor anchor = Anchor::start,
            const std::string& style = "");
  void raw(std::string_view element) { out_ += element; }

  std::string take() &&;

 private:
  std::string out_;
};

std::string hex(Rgb colour);
// Mixed with white: 0 is the colour itself, 1 is white.
Rgb lighter(Rgb colour, double share);
std::string escaped_xml(std::string_view text);
// A length with at most two decimals.
std::string px(double length);
// How wide text of that size is drawn at most, in a common sans-serif.
double text_width(std::string_view text, double size);

// A step for axis ticks (1, 2 or 5 times a power of ten) of which `range` holds at most `most`.
double tick_step(double range, int most);

// Unit for an axis of time up to `longest`.
struct TimeUnit {
  double seconds = 1;
  std::string_view name;
};
TimeUnit unit_for(Duration longest);

}  // namespace sluice
