#pragma once

#include <memory>
#include <vector>

#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "kernels/device_kernels.h"

namespace sluice::exec {

// Connects the devices of one process: whole GPUs, or partitions of one. A message is a copy by the receiver, enqueued
// on the stream of its edge once both ends have posted it and ordered by events; collectives read the memory of the
// other members, or copies of it where kernels cannot access that. No device spins while waiting for another.
class DeviceFabric {
 public:
  DeviceFabric(int workers, const DeviceKernels& kernels);
  ~DeviceFabric();
  DeviceFabric(const DeviceFabric&) = delete;
  DeviceFabric& operator=(const DeviceFabric&) = delete;

  // Returns the transport of a worker. `host`: its host transport, which reports when the run has been stopped.
  DeviceTransport& worker(const Transport& host);
  // Waits for all enqueued copies. Called when the threads of all workers have ended, before their memory is freed.
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
