#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Returns the candidate with the least edit distance to `word` (case-insensitive), or "" if none is near enough to be a
// likely typo: with a distance of at most a third of the longer word without "--", but at least 1, or 2 for words of
// more than 3 letters with the same first one.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// Returns "; did you mean 'x'?", or "" if nothing is near. Names with `word` between their dashes, as dgx-h100 with
// h100, come before typos of others: "; did you mean 'x' or 'y'?", at most four.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

}  // namespace sluice::model
