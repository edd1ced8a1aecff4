#include "tools/command/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace sluice::tools {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view(value);
}

}  // namespace

int terminal_columns(int fallback) {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return fallback;
  return size.ws_col;
}

TextColour terminal_colour(const std::string& mode) {
  const bool off = !environment("NO_COLOR").empty() || environment("TERM") == "dumb" || ::isatty(STDOUT_FILENO) == 0;
  if (mode == "never" || (mode == "auto" && off)) return TextColour::none;
  const std::string_view depth = environment("COLORTERM");
  return depth == "truecolor" || depth == "24bit" ? TextColour::truecolor : TextColour::ansi256;
}

}  // namespace sluice::tools
