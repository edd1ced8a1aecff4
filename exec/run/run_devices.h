#pragma once

#include <functional>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// The devices of the workers of this process.
struct RunDevices {
  const DeviceKernels* kernels = nullptr;  // null: the CPU
  std::vector<Device*> devices;            // by world rank; null for workers of other processes
  DeviceTransport* transport = nullptr;    // between processes; not needed within one
};

// The device of one worker.
struct WorkerDevice {
  Device* device = nullptr;
  DeviceTransport* transport = nullptr;
};

// Throws DoesNotFit if the arenas of the workers on one GPU need more memory than it has free.
void check_device_memory(const RunPlan& plan, const RunDevices& devices);

// Calls `work` on one thread per worker, with its transport and device. If a worker fails, stops the others and throws
// its exception after all threads have ended.
void on_device_threads(int workers, const RunDevices& devices,
                       const std::function<void(Transport&, const WorkerDevice&)>& work);

}  // namespace sluice::exec
