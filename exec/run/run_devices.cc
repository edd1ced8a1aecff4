#include "exec/run/run_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "exec/plan/host_memory.h"
#include "exec/transport/in_process.h"
#include "exec/transport/on_threads.h"
#include "model/errors.h"

namespace sluice::exec {
void check_device_memory(const RunPlan& plan, const RunDevices& devices) {
  struct OfGpu {
    std::int64_t needed = 0;
    std::int64_t free = 0;
    int workers = 0;
    std::string name;
  };
  std::map<int, OfGpu> gpus;
  for (std::size_t rank = 0; rank < devices.devices.size(); ++rank) {
    const Device* const device = devices.devices[rank];
    if (device == nullptr) continue;
    OfGpu& gpu = gpus[device->ordinal()];
    gpu.needed += plan.arena(plan.layout().pipeline_rank(static_cast<int>(rank))).total_bytes;
    gpu.free = device->free_bytes();
    gpu.name = device->name();
    ++gpu.workers;
  }
  for (const auto& [ordinal, gpu] : gpus) {
    if (gpu.needed <= gpu.free) continue;
    throw DoesNotFit(fmt::format("{} worker(s) on {} need {:.2f} GiB, but {:.2f} GiB are free", gpu.workers, gpu.name,
                                 static_cast<double>(gpu.needed) / kGiB, static_cast<double>(gpu.free) / kGiB));
  }
}

void on_device_threads(int workers, const RunDevices& devices,
                       const std::function<void(Transport&, const WorkerDevice&)>& work) {
  if (devices.kernels == nullptr) {
    on_threads(workers, [&](Transport& transport) { work(transport, {}); });
    return;
  }
  std::unique_ptr<DeviceFabric> fabric;
  std::once_flag made;
  on_threads(workers, [&](Transport& transport) {
    std::call_once(made, [&] { fabric = std::make_unique<DeviceFabric>(workers, *devices.kernels); });
    const int rank = transport.rank();
    work(transport, {devices.devices[rank], &fabric->worker(transport)});
  });
}

}  // namespace sluice::exec
