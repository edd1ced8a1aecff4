#pragma once

#include <memory>
#include <vector>

#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// Devices of one process: whole GPUs, or partitions of one. A message is a copy on the receiver's side, put on its
// edge's stream once both ends are there, and ordered by events; sums read the others' memory. Nobody spins on a device
// for another.
class DeviceFabric {
 public:
  DeviceFabric(int workers, const DeviceKernels& kernels);
  ~DeviceFabric();
  DeviceFabric(const DeviceFabric&) = delete;
  DeviceFabric& operator=(const DeviceFabric&) = delete;

  // Of the worker that reaches the others by `host` on the host, which says when the run has been stopped.
  DeviceTransport& worker(const Transport& host);
  // Waits for all copies that stand on a stream. To be called, when all workers' threads have ended, before any of
  // their memory goes.
  void drain();

 private:
  struct Shared;
  struct Session;
  class Worker;
  class Connection;
  class Group;
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace sluice::exec
