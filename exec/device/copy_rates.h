#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace sluice::exec {

// Copy bandwidth from one memory to another, measured with a few copies of 64 MiB, and the time of a copy of a few
// bytes.
struct CopyRate {
  std::string from;  // "host", "GPU 0"
  std::string to;
  double bytes_per_s = 0;
  double seconds = 0;
};

// Measures between the host (pinned memory) and each device, and between each two devices. Throws DeviceError.
std::vector<CopyRate> measured_copies(std::span<const std::unique_ptr<Device>> devices);

}  // namespace sluice::exec
