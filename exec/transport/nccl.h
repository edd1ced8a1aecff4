#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "exec/transport/device_transport.h"
#include "exec/transport/nccl_functions.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"

namespace sluice::exec {

class NcclCommunicators;

struct NcclOptions {
  std::chrono::milliseconds patience{120000};    // for operations of all ranks together: the world, its connections
  std::chrono::milliseconds abort_budget{5000};  // for aborting all communicators
  int message_blocks = 4;                        // of a device that a message occupies at most, also while it waits
};

// The NCCL communicators of one process of a run; one process per world rank and GPU.
//
// Every edge of a run has a communicator of its two ends and a high-priority stream, so that the messages of one edge
// keep their order, those of two directions never wait for each other, and a waiting message occupies few blocks of the
// device. (A device must have room for all that may wait concurrently: message_blocks per edge.) Every group has a
// communicator too, and works on the stream that it is given. Communicators block the host: NCCL starts a thread for
// every operation of those that do not. What waits for other ranks, their creation and first use, therefore runs on a
// thread of its own; the worker's thread watches the clock and the host transport meanwhile. After that it only
// enqueues, without waiting for other ranks, and ncclCommGetAsyncError reports errors of what is enqueued.
//
// A message waits on the device: see DeviceTransport::waits_on_device. The kernels of NCCL are loaded once the world is
// made.
class NcclWorld {
 public:
  // Called by all ranks of `host` together: it carries the id of the world, and reports when the run has been stopped.
  // Host and device outlive the world. Throws DeviceError if NCCL fails, or if the other ranks do not arrive within
  // options.patience; Stopped if the run is stopped.
  NcclWorld(const NcclFunctions& functions, Device& device, Transport& host, const NcclOptions& options = {});
  // Frees the communicators; aborts them if the run has been stopped.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  // Returns the transport of the worker.
  DeviceTransport& devices() { return *devices_; }

  // Aborts all communicators concurrently, since aborting them one after the other is known to hang; what waits on the
  // device ends. Returns when that is done or options.abort_budget is over: the process should then _exit. Called once,
  // by any thread. Stopping the host transport does this.
  void abort();

 private:
  Transport& host_;
  std::unique_ptr<NcclCommunicators> communicators_;
  std::unique_ptr<DeviceTransport> devices_;
  int exceptions_;  // in flight at construction
};

}  // namespace sluice::exec
