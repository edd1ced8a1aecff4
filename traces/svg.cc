#include "traces/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace sluice {

Svg::Svg(double width, double height, std::string_view title, std::string_view description) {
  fmt::format_to(std::back_inserter(out_),
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
                 "font-family=\"Helvetica, Arial, 'Liberation Sans', sans-serif\" role=\"img\">\n"
                 "<title>{2}</title>\n<desc>{3}</desc>\n"
                 "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
                 px(width), px(height), escaped_xml(title), escaped_xml(description));
}

void Svg::rect(double x, double y, double width, double height, const std::string& style) {
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

std::string Svg::take() && {
  out_ += "</svg>\n";
  return std::move(out_);
}

std::string hex(Rgb colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue); }

Rgb lighter(Rgb colour, double share) {
  const auto mix = [&](std::uint8_t c) {
    return static_cast<std::uint8_t>(std::lround(static_cast<double>(c) + (255.0 - static_cast<double>(c)) * share));
  };
  return {mix(colour.red), mix(colour.green), mix(colour.blue)};
}

std::string escaped_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default:
        // Control characters are no XML, however they are written.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string px(double length) {
  std::string out = fmt::format("{:.2f}", length);
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

double text_width(std::string_view text, double size) {
  // Digits take 0.556 em in Helvetica and its kin, capitals up to 0.78; multi-byte characters count once.
  double ems = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0U) == 0x80U) continue;
    ems += c == '.' || c == ' ' || c == ',' ? 0.28 : (c >= 'A' && c <= 'Z') ? 0.72 : c == 'W' ? 0.95 : 0.556;
  }
  return ems * size;
}

double tick_step(double range, int most) {
  if (!(range > 0)) return 1;
  const double least = range / most;
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

}  // namespace sluice
