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
class NcclDevices;

struct NcclOptions {
  std::chrono::milliseconds patience{120000};    // for what all ranks come to together: the world, its connections
  std::chrono::milliseconds abort_budget{5000};  // for ending all communicators
  int message_blocks = 4;  // of a device that a message occupies at most, also while it waits for its other end
};

// What one process of a run has of NCCL; one process for each world rank and GPU.
//
// Every edge of a run has a communicator of its two ends and a stream of its own, of high priority, so that messages of
// one edge keep their order, those of two directions never wait for each other, and what waits on the device occupies
// few of its blocks. (A device must have room for all that may wait at once: message_blocks for each of its edges.)
// Every group has one too, and works on the stream that it is given. Communicators do not block the host: one thread
// issues one operation after the other, and looks for what has become of it (ncclCommGetAsyncError) and at the clock.
//
// A message that waits does so on the device: see DeviceTransport::waits_on_device. NCCL's own kernels are there once
// the world is made.
class NcclWorld {
 public:
  using Broadcast = std::function<void(std::span<std::byte>)>;  // what rank 0 has, for all

  // By all ranks together; `broadcast` is called once, for the id of the world. The device outlives the world. Throws
  // DeviceError if NCCL fails, or the others do not come within options.patience.
  NcclWorld(const NcclFunctions& functions, Device& device, int rank, int size, const Broadcast& broadcast,
            const NcclOptions& options = {});
  // Frees the communicators; aborts them if the run has been stopped.
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  // Messages of Channel::control between the hosts: few and small. They go through pinned memory and the device, those
  // between two ranks in the order in which they are posted. Where there is MPI, its transport does this better.
  Transport& control();

  // Of the worker whose host transport says when the run has been stopped (`control`, or another).
  DeviceTransport& devices(const Transport& host);

  // Ends all communicators, all at once, since one after the other is known to hang; what waits on the device comes to
  // its end. Returns when that is done or options.abort_budget is over: the process should then _exit. Any thread;
  // once. Stopping `control` does this, and so does a `progress` that finds its host transport stopped.
  void abort();

 private:
  std::unique_ptr<NcclCommunicators> communicators_;
  std::unique_ptr<Transport> control_;
  std::unique_ptr<NcclDevices> devices_;
  int exceptions_;  // under way when it was made
};

}  // namespace sluice::exec
