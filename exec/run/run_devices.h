#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/in_process.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// Device memory that arenas leave free: CUDA loads modules and grows local memory when kernels are first launched.
inline constexpr std::int64_t kDefaultMemoryMargin = std::int64_t{512} << 20;

// The devices of the workers of this process.
struct RunDevices {
  const DeviceKernels* kernels = nullptr;  // null: the CPU
  std::vector<Device*> devices;            // by world rank; null for workers of other processes
  DeviceTransport* transport = nullptr;    // between processes; not needed within one
  std::int64_t memory_margin = kDefaultMemoryMargin;
};

// The device of one worker.
struct WorkerDevice {
  Device* device = nullptr;
  DeviceTransport* transport = nullptr;
  // Held while the worker queries events, which contend in the driver if several threads query those of one GPU. Null
  // if no other thread of the process does.
  std::mutex* queries = nullptr;
  std::int64_t memory_margin = kDefaultMemoryMargin;
};

// The transport and the locks of workers that are threads of one process.
class ThreadDevices {
 public:
  ThreadDevices(int workers, const RunDevices& devices);
  WorkerDevice of(const Transport& transport);
  void drain() { fabric_.drain(); }

 private:
  const RunDevices& devices_;
  DeviceFabric fabric_;
  std::map<int, std::mutex> queries_;  // by ordinal of the GPU
};

// Throws DoesNotFit if the arenas of the workers on one GPU need more memory than it has free beyond the margin.
void check_device_memory(const RunPlan& plan, const RunDevices& devices);
// The same for `bytes` of one worker.
void check_device_memory(std::int64_t bytes, const WorkerDevice& device);

// Calls `work` on one thread per worker, with its transport and device. If a worker fails, stops the others and throws
// its exception after all threads have ended.
void on_device_threads(int workers, const RunDevices& devices,
                       const std::function<void(Transport&, const WorkerDevice&)>& work);

}  // namespace sluice::exec
