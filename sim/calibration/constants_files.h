#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/calibration/constants.h"

namespace sluice::sim {

// What a fit found, as files that --cluster and --software take.
struct ConstantsFiles {
  std::string node;      // "sluice.node/1", GPU and links in place; empty if no constant of a node was fitted
  std::string software;  // "sluice.software/1"; empty likewise
};

// The node and the program of `scenario`, a scenario document whose relative paths are taken from `folder`, with
// `values` in place of what they say of `constants`, to three digits. Each names `source`. Throws InputError.
ConstantsFiles files_with_constants(const nlohmann::json& scenario, const std::string& folder,
                                    std::span<const Constant> constants, std::span<const double> values,
                                    const std::string& source);

}  // namespace sluice::sim
