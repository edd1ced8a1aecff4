#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/units.h"
#include "traces/text/palette.h"

namespace sluice::traces {

// Builds an SVG picture of plain shapes and text that browsers, rsvg-convert and Inkscape draw identically. Lengths are
// in px.
class Svg {
 public:
  enum class Anchor { start, middle, end };

  Svg(double width, double height, std::string_view title, std::string_view description);
  // A part of a picture, to be added to a whole one by `raw`.
  Svg() = default;

  void rect(double x, double y, double width, double height, const std::string& style);
  void line(double x1, double y1, double x2, double y2, const std::string& style);
  void path(const std::string& data, const std::string& style);
  void text(double x, double y, std::string_view text, double size, Anchor anchor = Anchor::start,
            const std::string& style = "");
  // Text rotated by `degrees` around (x, y); -90 reads upwards.
  void rotated_text(double x, double y, double degrees, std::string_view text, double size, Anchor anchor);
  void raw(std::string_view element) { out_ += element; }

  std::string take() &&;
  std::string body() && { return std::move(out_); }  // for a part

 private:
  std::string out_;
};

std::string hex(Rgb colour);
// Mixes a colour with white: 0 returns the colour itself, 1 white.
Rgb lighter(Rgb colour, double white);
// Escapes text for an element or attribute. Control characters and invalid UTF-8 become U+FFFD.
std::string escaped_xml(std::string_view text);
// Formats a length with at most two decimals.
std::string px(double length);
// Returns an upper bound of the width of text: uses the wider advance of each character in Helvetica and DejaVu Sans,
// the usual sans-serif fonts. Bold text is up to a tenth wider.
double text_width(std::string_view text, double size);
// Truncates `text` to `width`, with an ellipsis.
std::string shortened(std::string_view text, double size, double width);
// Splits `text` into lines of at most `width`: at spaces, and within words that are wider. Each line has at least one
// character.
std::vector<std::string> wrapped(std::string_view text, double size, double width);

// Returns a step for axis ticks (1, 2 or 5 times a power of ten) with at most `max_steps` steps in `range`.
double tick_step(double range, int max_steps);

// The unit of a time axis up to `longest`.
struct TimeUnit {
  double seconds = 1;
  std::string_view name;
};
TimeUnit unit_for(Duration longest);

// Formats a value on an axis with the decimals that `step` needs: "0.5", "36 760".
std::string tick_label(double value, double step);

}  // namespace sluice::traces
