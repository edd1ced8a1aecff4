#include "model/input/nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace sluice::model {
namespace {

int lower_case(char c) { return std::tolower(static_cast<unsigned char>(c)); }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      const std::size_t substitute = diagonal + (lower_case(a[i - 1]) == lower_case(b[j - 1]) ? 0 : 1);
      row[j] = std::min({above + 1, row[j - 1] + 1, substitute});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Whether `word` is a sequence of whole parts of a name with dashes.
bool has_part(std::string_view name, std::string_view word) {
  const auto same = [](char a, char b) { return lower_case(a) == lower_case(b); };
  for (std::size_t at = 0; at + word.size() <= name.size(); ++at) {
    const bool whole =
        (at == 0 || name[at - 1] == '-') && (at + word.size() == name.size() || name[at + word.size()] == '-');
    if (whole && std::equal(word.begin(), word.end(), name.begin() + static_cast<std::ptrdiff_t>(at), same))
      return true;
  }
  return false;
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  // Flags share their dashes with every other flag.
  const auto letters = [](std::string_view text) { return text.substr(text.starts_with("--") ? 2 : 0); };
  std::string best;
  std::pair<std::size_t, std::size_t> best_distance;  // of the nearest part, and of the whole
  for (const std::string& candidate : candidates) {
    const std::string_view a = letters(word);
    const std::string_view b = letters(candidate);
    const std::size_t longest = std::max(a.size(), b.size());
    const std::size_t least = !a.empty() && !b.empty() && longest > 3 && lower_case(a[0]) == lower_case(b[0]) ? 2 : 1;
    const std::size_t whole = edit_distance(a, b);
    std::pair distance(whole <= std::max(least, longest / 3) ? whole : std::string::npos, whole);
    // Names are also known by their first parts: dgx-a100 of dgx-a100-40gb.
    for (std::size_t dash = b.find('-'); dash != std::string_view::npos; dash = b.find('-', dash + 1)) {
      constexpr std::size_t kShortestPart = 6;
      const std::size_t part = dash < kShortestPart ? std::string::npos : edit_distance(a, b.substr(0, dash));
      if (part <= 1) distance.first = std::min(distance.first, part);
    }
    if (distance.first != std::string::npos && (best.empty() || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string found = nearest(word, candidates);
  if (!word.empty() && !word.starts_with('-') && !has_part(found, word)) {
    std::vector<std::string> names;
    for (const std::string& each : candidates) {
      if (names.size() < 4 && has_part(each, word)) names.push_back("'" + each + "'");
    }
    if (!names.empty()) return fmt::format("; did you mean {}?", fmt::join(names, " or "));
  }
  return found.empty() ? "" : "; did you mean '" + found + "'?";
}

}  // namespace sluice::model
