#pragma once

#include <functional>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// What the workers of this process run on, where that is devices.
struct RunDevices {
  const DeviceKernels* kernels = nullptr;  // null: the CPU
  std::vector<Device*> devices;            // by world rank; of processes its own alone, else null
  DeviceTransport* transport = nullptr;    // between processes; workers of one process need none
};

// Of one worker.
struct WorkerDevice {
  Device* device = nullptr;
  DeviceTransport* transport = nullptr;
};

// Throws DoesNotFit, with what each rank needs, if the arenas of workers on one GPU are more than it has free.
void check_device_memory(const RunPlan& plan, const RunDevices& devices);

// Calls `work` on a thread for each of `workers`, with its transport and device. Throws what the first one threw that
// failed, after all have ended; the others are stopped.
void on_device_threads(int workers, const RunDevices& devices,
                       const std::function<void(Transport&, const WorkerDevice&)>& work);

}  // namespace sluice::exec
