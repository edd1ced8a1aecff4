#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "model/units.h"
#include "traces/text/palette.h"

namespace sluice::traces {

// Puts together an SVG picture: plain shapes and text that browsers, rsvg-convert and Inkscape draw alike. Lengths are
// in px.
class Svg {
 public:
  enum class Anchor { start, middle, end };

  Svg(double width, double height, std::string_view title, std::string_view description);
  // A part of a picture, to be added by `raw` to a whole one.
  Svg() = default;

  void rect(double x, double y, double width, double height, const std::string& style);
  void line(double x1, double y1, double x2, double y2, const std::string& style);
  void path(const std::string& data, const std::string& style);
  void text(double x, double y, std::string_view text, double size, Anchor anchor = Anchor::start,
            const std::string& style = "");
  // The same turned by `degrees` about (x, y); -90 reads upwards.
  void turned_text(double x, double y, double degrees, std::string_view text, double size, Anchor anchor);
  void raw(std::string_view element) { out_ += element; }

  std::string take() &&;
  std::string body() && { return std::move(out_); }  // of a part

 private:
  std::string out_;
};

std::string hex(Rgb colour);
// Mixed with white: 0 is the colour itself, 1 is white.
Rgb lighter(Rgb colour, double share);
// For an element or an attribute. What is no XML, control characters and what is not UTF-8, becomes U+FFFD.
std::string escaped_xml(std::string_view text);
// A length with at most two decimals.
std::string px(double length);
// How wide text of that size is drawn at most: each character's wider advance of Helvetica and DejaVu Sans, which are
// what sans-serif is on most machines. Bold is up to a tenth wider.
double text_width(std::string_view text, double size);
// As much of `text` as is no wider than `width`, with an ellipsis if that is not all.
std::string shortened(std::string_view text, double size, double width);

// A step for axis ticks (1, 2 or 5 times a power of ten) of which `range` holds at most `most`.
double tick_step(double range, int most);

// Unit for an axis of time up to `longest`.
struct TimeUnit {
  double seconds = 1;
  std::string_view name;
};
TimeUnit unit_for(Duration longest);

// "0.5", "36 760": a value on an axis, as precise as the step between ticks needs.
std::string tick_label(double value, double step);

}  // namespace sluice::traces
