#include "model/input/yaml_text.h"

#include <algorithm>
#include <cctype>

namespace sluice::model {

bool looks_like_yaml(std::string_view text, std::string_view source) {
  if (source.ends_with(".yaml") || source.ends_with(".yml")) return true;
  std::string_view line;
  while (!text.empty() && (line.empty() || line.starts_with('#'))) {
    line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
  }
  const std::size_t colon = line.find(':');
  if (line == "---") return true;
  if (colon == std::string_view::npos || (colon + 1 < line.size() && line[colon + 1] != ' ')) return false;
  return std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(colon),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; });
}

}  // namespace sluice::model
