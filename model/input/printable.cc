#include "model/input/printable.h"

#include <fmt/format.h>

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

bool has_control_characters(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(1)) {
    if (control_character(text) > 0) return true;
  }
  return false;
}

std::string printable(std::string_view text, bool one_line) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = control_character(text, one_line);
    if (bytes == 0) {
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[bytes - 1]));
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace sluice::model
