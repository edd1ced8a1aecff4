#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/namespaces.h"

namespace sluice::model {

// Returns the candidate with the least edit distance to `word` (case-insensitive), or "" if none is near enough to be a
// likely typo (distance above a third of the longer word, at least 2).
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// Returns "; did you mean 'x'?", or "" if nothing is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

}  // namespace sluice::model
