#include "exec/run/run_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "exec/plan/host_memory.h"
#include "exec/transport/threads.h"
#include "model/errors.h"

namespace sluice::exec {
namespace {

// Throws DoesNotFit unless `needed` bytes of `who` leave the margin of the free ones.
void check_margin(const std::string& who, std::int64_t needed, std::int64_t free, std::int64_t margin) {
  if (needed <= free - margin) return;
  throw DoesNotFit(fmt::format(
      "{} need {:.2f} GiB, but {:.2f} GiB are free, of which {:.2f} GiB are kept free "
      "(--device-memory-margin)",
      who, static_cast<double>(needed) / kGiB, static_cast<double>(free) / kGiB, static_cast<double>(margin) / kGiB));
}

}  // namespace

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
    check_margin(fmt::format("{} worker(s) on {}", gpu.workers, gpu.name), gpu.needed, gpu.free, devices.memory_margin);
  }
}

void check_device_memory(std::int64_t bytes, const WorkerDevice& device) {
  check_margin("the buffers of a worker on " + device.device->name(), bytes, device.device->free_bytes(),
               device.memory_margin);
}

ThreadDevices::ThreadDevices(int workers, const RunDevices& devices)
    : devices_(devices), fabric_(workers, *devices.kernels) {
  for (const Device* const device : devices.devices) queries_[device->ordinal()];
}

WorkerDevice ThreadDevices::of(const Transport& transport) {
  Device* const device = devices_.devices[transport.rank()];
  return {device, &fabric_.worker(transport), &queries_.at(device->ordinal()), devices_.memory_margin};
}

void on_device_threads(int workers, const RunDevices& devices,
                       const std::function<void(Transport&, const WorkerDevice&)>& work) {
  if (devices.kernels == nullptr) {
    on_threads(workers, [&](Transport& transport) { work(transport, {}); });
    return;
  }
  ThreadDevices threads(workers, devices);
  on_threads(workers, [&](Transport& transport) { work(transport, threads.of(transport)); });
}

}  // namespace sluice::exec
