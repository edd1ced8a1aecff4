#include "traces/figure/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "model/input/printable.h"

namespace sluice::traces {
namespace {

// Advance widths of the characters from space to ~ in thousandths of an em, the wider of Helvetica's and DejaVu Sans's.
constexpr std::array<int, 95> kThousandths = {
    318, 401, 460, 838, 636, 950, 780,  275, 390, 390, 500, 838, 318, 361, 318, 337,  // space to /
    636, 636, 636, 636, 636, 636, 636,  636, 636, 636,                                // digits
    337, 337, 838, 838, 838, 556, 1015,                                               // : to @
    684, 686, 722, 770, 667, 611, 778,  752, 295, 500, 667, 557, 863,                 // A to M
    748, 787, 667, 787, 722, 667, 611,  732, 684, 989, 685, 667, 685,                 // N to Z
    390, 337, 390, 838, 500, 500,                                                     // [ to `
    613, 635, 550, 635, 615, 352, 635,  634, 278, 278, 579, 278, 974,                 // a to m
    634, 612, 635, 635, 411, 521, 392,  634, 592, 818, 592, 592, 525,                 // n to z
    636, 337, 636, 838};                                                              // { to ~

// Returns the length in bytes of the first character of `text`; 0 if it is invalid UTF-8 or not allowed in XML 1.0.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x20 && first != '\t' && first != '\n' && first != '\r') return 0;
  return utf8_length(text);
}

double rounded(double length) { return std::round(length * 100) / 100; }

}  // namespace

Svg::Svg(double width, double height, std::string_view title, std::string_view description) {
  fmt::format_to(std::back_inserter(out_),
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
                 "font-family=\"Helvetica, Arial, 'Liberation Sans', sans-serif\" role=\"img\">\n"
                 "<title>{2}</title>\n<desc>{3}</desc>\n"
                 "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
                 px(width), px(height), escaped_xml(title), escaped_xml(description));
}

void Svg::rect(double x, double y, double width, double height, const std::string& style) {
  // Edges are rounded, not sizes, so that adjacent rectangles touch.
  width = rounded(x + width) - rounded(x);
  height = rounded(y + height) - rounded(y);
  fmt::format_to(std::back_inserter(out_), "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}/>\n", px(x), px(y),
                 px(width), px(height), style);
}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& style) {
  fmt::format_to(std::back_inserter(out_), "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", px(x1), px(y1),
                 px(x2), px(y2), style);
}

void Svg::path(const std::string& data, const std::string& style) {
  fmt::format_to(std::back_inserter(out_), "<path d=\"{}\" {}/>\n", data, style);
}

void Svg::text(double x, double y, std::string_view text, double size, Anchor anchor, const std::string& style) {
  static constexpr std::string_view kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  fmt::format_to(std::back_inserter(out_), "<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}{}{}>{}</text>\n", px(x), px(y),
                 px(size), kAnchors[static_cast<int>(anchor)], style.empty() ? "" : " ", style, escaped_xml(text));
}

void Svg::rotated_text(double x, double y, double degrees, std::string_view text, double size, Anchor anchor) {
  static constexpr std::string_view kAnchors[] = {"start", "middle", "end"};
  fmt::format_to(std::back_inserter(out_),
                 "<text transform=\"translate({} {}) rotate({})\" font-size=\"{}\" text-anchor=\"{}\">{}</text>\n",
                 px(x), px(y), px(degrees), px(size), kAnchors[static_cast<int>(anchor)], escaped_xml(text));
}

std::string Svg::take() && {
  out_ += "</svg>\n";
  return std::move(out_);
}

std::string hex(Rgb colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue); }

Rgb lighter(Rgb colour, double white) {
  const auto mix = [&](std::uint8_t c) {
    return static_cast<std::uint8_t>(std::lround(static_cast<double>(c) + (255.0 - static_cast<double>(c)) * white));
  };
  return {mix(colour.red), mix(colour.green), mix(colour.blue)};
}

std::string escaped_xml(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(text.substr(i));
    if (length == 0) {
      out += "\xEF\xBF\xBD";  // U+FFFD
      ++i;
      continue;
    }
    switch (text[i]) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += text.substr(i, length);
    }
    i += length;
  }
  return out;
}

std::string px(double length) {
  std::string out = fmt::format("{:.2f}", rounded(length));
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

double text_width(std::string_view text, double size) {
  double ems = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      ems += kThousandths[byte - 0x20] / 1000.0;
    } else if (byte >= 0xC0) {
      ems += 1;  // the first byte of any other character
    }
  }
  return ems * size;
}

std::vector<std::string> wrapped(std::string_view text, double size, double width) {
  std::vector<std::string> lines;
  std::string line;
  double used = 0;       // width of `line`
  std::size_t word = 0;  // start of the current word in `line`
  const auto end_line = [&](std::size_t length) {
    lines.push_back(line.substr(0, length));
    line.erase(0, length);
    line.erase(0, line.find_first_not_of(' '));
    used = text_width(line, size);
    word = 0;
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = std::max<std::size_t>(character_length(text.substr(i)), 1);
    const std::string_view character = text.substr(i, length);
    i += length;
    if (character == " " || character == "\n") {
      if (!line.empty() && line.back() != ' ') {
        line += ' ';
        used += text_width(" ", size);
      }
      word = line.size();
      continue;
    }
    const double next = text_width(character, size);
    if (!line.empty() && used + next > width) end_line(word > 0 ? word - 1 : line.size());
    line += character;
    used += next;
  }
  while (line.ends_with(' ')) line.pop_back();
  if (!line.empty()) lines.push_back(line);
  return lines;
}

std::string shortened(std::string_view text, double size, double width) {
  if (text_width(text, size) <= width) return std::string(text);
  constexpr std::string_view kEllipsis = "\u2026";
  while (!text.empty() && text_width(text, size) + size > width) {
    while (text.size() > 1 && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0x80U) text.remove_suffix(1);
    text.remove_suffix(1);
  }
  while (text.ends_with(' ')) text.remove_suffix(1);
  return std::string(text) + std::string(kEllipsis);
}

double tick_step(double range, int max_steps) {
  if (!(range > 0)) return 1;
  const double least = range / max_steps;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

TimeUnit unit_for(Duration longest) {
  const double seconds = to_seconds(longest);
  if (seconds >= 1) return {1, "s"};
  if (seconds >= 1e-3) return {1e-3, "ms"};
  return {1e-6, "µs"};
}

std::string tick_label(double value, double step) {
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 9);
  std::string out = fmt::format("{:.{}f}", value, decimals);
  // Separates thousands, from 10 000 on.
  const std::size_t point = std::min(out.find('.'), out.size());
  const std::size_t first = out.starts_with('-') ? 1 : 0;
  if (point - first < 5) return out;
  for (std::size_t i = point - 3; i > first; i -= std::min<std::size_t>(i - first, 3)) out.insert(i, 1, ' ');
  return out;
}

}  // namespace sluice::traces
