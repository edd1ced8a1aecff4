#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace sluice::exec {

// How fast bytes go from one memory to another, by a few copies of some MiB; and what one of a few bytes takes.
struct CopyRate {
  std::string from;  // "host", "GPU 0"
  std::string to;
  double bytes_per_s = 0;
  double seconds = 0;
};

// Between the host (pinned memory) and each device, and between every two devices. Throws DeviceError.
std::vector<CopyRate> measured_copies(std::span<const std::unique_ptr<Device>> devices);

}  // namespace sluice::exec
