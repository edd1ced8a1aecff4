#include "import/names.h"

#include <algorithm>

namespace sluice::imports {

bool lists_name(std::string_view patterns, std::string_view name) {
  while (!patterns.empty()) {
    const std::string_view pattern = patterns.substr(0, patterns.find(' '));
    patterns.remove_prefix(std::min(pattern.size() + 1, patterns.size()));
    const std::string_view begin = pattern.substr(0, pattern.find('*'));
    const std::string_view end = pattern.substr(std::min(begin.size() + 1, pattern.size()));
    const bool star = begin.size() < pattern.size();
    if (star ? name.size() + 1 >= pattern.size() && name.starts_with(begin) && name.ends_with(end) : name == pattern) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> words_of_list(std::string_view value) {
  std::vector<std::string> out(1);
  for (const char c : value) {
    if (c == ',') out.emplace_back();
    if (std::string_view("[]'\" ,").find(c) == std::string_view::npos) out.back() += c;
  }
  std::erase(out, "");
  return out;
}

}  // namespace sluice::imports
