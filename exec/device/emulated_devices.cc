// Devices whose kernels run on threads of the host, for tests.

#include <fmt/format.h>

#include "exec/device/provider.h"
#include "kernels/emulation/device.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

constexpr int kGpus = 8;
constexpr int kMultiprocessors = 4;

class EmulatedDevices final : public DeviceProvider {
 public:
  std::string name() const override { return "emulation"; }

  std::vector<std::unique_ptr<Device>> open(const DeviceRequest& request,
                                            std::span<const int> ordinals) const override {
    const bool whole = request.kind == DeviceRequest::gpu;
    const int given = ordinals.empty() ? kGpus : static_cast<int>(ordinals.size());
    const int count = whole && request.count == 0 ? given : request.count;
    if (whole && count > given) {
      throw InputError(fmt::format("devices: {} GPUs requested, but there are {}", count, given));
    }
    std::vector<std::unique_ptr<Device>> devices;
    for (int i = 0; i < count; ++i) {
      emulation::EmulatedDeviceSpec spec;
      spec.multiprocessors = kMultiprocessors;
      spec.ordinal = ordinals.empty() ? (whole ? i : 0) : ordinals[whole ? static_cast<std::size_t>(i) : 0];
      if (spec.ordinal < 0 || spec.ordinal >= kGpus) {
        throw InputError(fmt::format("devices: there is no GPU {}, only 0 to {}", spec.ordinal, kGpus - 1));
      }
      spec.name = fmt::format("emulated GPU {}", spec.ordinal);
      if (!whole) {
        spec.name +=
            fmt::format(", {} {} of {}", request.kind == DeviceRequest::green ? "partition" : "stream", i, count);
      }
      devices.push_back(emulation::make_device(spec));
    }
    return devices;
  }

  int num_devices() const override { return kGpus; }
  std::vector<DeviceFacts> devices() const override {
    std::vector<DeviceFacts> all;
    const emulation::EmulatedDeviceSpec like;
    for (int i = 0; i < kGpus; ++i) {
      all.push_back({.name = fmt::format("emulated GPU {}", i),
                     .ordinal = i,
                     .multiprocessors = kMultiprocessors,
                     .compute_capability = like.compute_capability,
                     .memory_bytes = like.memory_bytes,
                     .free_bytes = like.memory_bytes,
                     .bfloat16 = true,
                     .most_partitions = kMultiprocessors});
    }
    return all;
  }
  std::vector<SoftwareFacts> software() const override { return {}; }
  std::string architectures() const override { return "emulation"; }
  std::string why_none() const override { return {}; }
};

}  // namespace

const DeviceProvider* device_provider() {
  static const EmulatedDevices provider;
  return &provider;
}

}  // namespace sluice::exec
