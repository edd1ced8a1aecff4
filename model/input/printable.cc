#include "model/input/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::model {
namespace {

// Returns the bytes of the control character at the begin of `text`; 0 if it is another character. Tabs and newlines
// are control characters only with `one_line`.
std::size_t control_character(std::string_view text, bool one_line = false) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (!one_line && (byte(0) == '\t' || byte(0) == '\n')) return 0;
  if (byte(0) < 0x20 || byte(0) == 0x7F) return 1;
  const bool above_ascii = byte(0) == 0xC2 && text.size() > 1 && byte(1) >= 0x80 && byte(1) < 0xA0;
  return above_ascii ? 2 : 0;
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first < 0xC2 || first > 0xF4 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  unsigned value = length == 0 ? 0 : first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    value = value << 6U | (byte(i) & 0x3FU);
  }
  // Overlong encodings, surrogates, noncharacters, beyond the last code point.
  if ((length == 3 && value < 0x800) || (length == 4 && value < 0x10000)) return 0;
  if ((value >= 0xD800 && value < 0xE000) || value == 0xFFFE || value == 0xFFFF || value > 0x10FFFF) return 0;
  return length;
}

bool has_control_characters(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (control_character(text) > 0) return true;
  }
  return false;
}

std::string printable(std::string_view text, bool one_line) {
  std::string out;
  while (!text.empty()) {
    const std::size_t control = control_character(text, one_line);
    std::size_t bytes = control > 0 ? 0 : utf8_length(text);
    if (bytes > 0) {
      out.append(text, 0, bytes);
    } else {
      bytes = std::max<std::size_t>(control, 1);
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[bytes - 1]));
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace sluice::model
