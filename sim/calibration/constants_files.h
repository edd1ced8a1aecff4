#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/calibration/constants.h"

namespace sluice::sim {

// Fitted constants as files for --cluster and --software.
struct ConstantsFiles {
  std::string node;      // "sluice.node/1", with GPU and links inline; empty if no constant of a node was fitted
  std::string software;  // "sluice.software/1"; empty likewise
};

// Returns the node and the framework of `scenario`, a scenario document whose relative paths are resolved against
// `folder`, with `values` of `constants`, to three digits, and `source` as their source. Throws InputError.
ConstantsFiles files_with_constants(const nlohmann::json& scenario, const std::string& folder,
                                    std::span<const Constant> constants, std::span<const double> values,
                                    const std::string& source);

}  // namespace sluice::sim
