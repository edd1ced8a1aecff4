#pragma once

#include <string>

#include "sim/calibration/kernel_fit.h"
#include "sim/calibration/link_fit.h"

namespace sluice::sim {

// A file of the catalogue with what a fit found in place of the constants it was for, to three digits; every other line
// stays. The source of each names `command`, the number of rows and the errors. `name` is that of the file, without its
// folder. Throws InputError if the catalogue does not hold it.
std::string gpu_file_with(const std::string& name, const GpuFit& fit, const std::string& command);
std::string link_file_with(const std::string& name, const LinkFit& fit, const std::string& command);

}  // namespace sluice::sim
