#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/collective.h"
#include "kernels/device.h"

namespace sluice::exec {

// Who talks to whom, by world rank; the same on every worker, in the same order.
struct DeviceLinks {
  std::vector<std::pair<int, int>> edges;  // sender, receiver
  std::vector<std::vector<int>> groups;    // ascending; some may have the same members, and are used on other streams

  friend bool operator==(const DeviceLinks&, const DeviceLinks&) = default;
};

// One message between the memories of two devices. The owner keeps it, the buffer and the events where they are until
// it is done.
struct DeviceMessage {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  std::size_t edge = 0;    // of the links; this worker is one of its ends
  std::int64_t id = 0;     // both ends know it; those of an edge come in the same order at both
  Event* ready = nullptr;  // of a send: the data are there; of a receive: the buffer is free. Null: at once

  // Events of this worker's device, for the transport to record: when the bytes begin to move, and when they have. A
  // transport may put the other end's in their place; `started` null where only the other end knows.
  Event* started = nullptr;
  Event* done = nullptr;
  std::atomic<bool> placed{false};  // `done` stands on a stream: it may be waited for
};

// How one worker's device reaches those of the others in the runs of one plan: sends, receives and sums are put on
// streams, and move when what they wait for is done. Messages of one edge move in order; those of different edges never
// wait for each other. All calls by the worker's one thread, which issues everything in the order of the graph's
// vertices, as all workers do: so nobody waits for what is issued later.
class DeviceConnection {
 public:
  virtual ~DeviceConnection() = default;
  // Return at once; `placed` is set here or in a later `progress`.
  virtual void send(DeviceMessage& message) = 0;
  virtual void receive(DeviceMessage& message) = 0;
  // To be called again and again while the worker waits for anything. Throws Stopped once the run has been stopped,
  // DeviceError if the transport has failed.
  virtual void progress() = 0;
  // Group `index` of the links; null where this worker is not one of it.
  virtual StreamGroup* group(std::size_t index) = 0;
};

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  // By all workers together: makes the connections, and uses each once where that makes a difference. Several may be
  // there at a time, and each worker makes them in the same order. Those with equal links may share what lies beneath.
  // The device outlives the connection, the transport too.
  virtual std::unique_ptr<DeviceConnection> connect(const DeviceLinks& links, Device& device) = 0;
  // Whether what waits for its other end does so on the device, which then does not come to rest. A kernel's first
  // launch waits for that (CUDA loads lazily): every kernel of a run must have run before its first message is posted.
  virtual bool waits_on_device() const { return false; }
};

}  // namespace sluice::exec
