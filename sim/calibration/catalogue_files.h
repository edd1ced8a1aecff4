#pragma once

#include <string>

#include "sim/calibration/kernel_fit.h"
#include "sim/calibration/link_fit.h"

namespace sluice::sim {

// Returns a file of the catalogue with the fitted constants, to three digits, and all other lines unchanged. The source
// of each constant names `command`, the number of rows and the errors. `name`: of the file, without its folder. Throws
// InputError if the catalogue does not have it.
std::string gpu_file_with(const std::string& name, const GpuFit& fit, const std::string& command);
std::string link_file_with(const std::string& name, const LinkFit& fit, const std::string& command);

}  // namespace sluice::sim
