#pragma once

#include <CLI/CLI.hpp>

#include "tools/goodput/goodput_request.h"

namespace sluice::tools {

// Adds the flags of `sluice goodput` besides the scenario's and its outputs. `request` must live as long as `command`.
void add_goodput_flags(CLI::App& command, GoodputRequest& request);

// Sets what words such as {"--spares", "4"} say. Throws InputError.
void read_goodput_flags(GoodputRequest& request, std::vector<std::string> words);

}  // namespace sluice::tools
