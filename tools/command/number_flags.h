#pragma once

#include <CLI/CLI.hpp>
#include <limits>

#include "model/namespaces.h"

namespace sluice::tools {

// Checks that a flag is a number from `low` to `high`, or of at least `low`. Unlike CLI::Range, it rejects NaN.
CLI::Validator number_from(double low, double high = std::numeric_limits<double>::infinity());

// To be added with `transform`: converts "10%" or "10 %" to 0.1, and accepts fractions from 0 to 1. A number above 1
// without a percent sign is ambiguous and rejected. Fractions are at most `most`.
CLI::Validator fraction(double most = 1e7);

}  // namespace sluice::tools
