#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/collective.h"
#include "kernels/device.h"

namespace sluice {

// Who talks to whom, by world rank; the same on every worker, in the same order.
struct DeviceLinks {
  std::vector<std::pair<int, int>> edges;  // sender, receiver; some more than once: see DeviceMessage::edge
  std::vector<std::vector<int>> groups;    // ascending; those of one place may follow each other on one stream

  friend bool operator==(const DeviceLinks&, const DeviceLinks&) = default;
};

// One message between the memories of two devices. The owner keeps it, the buffer and the events where they are until
// it is done.
struct DeviceMessage {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  int peer = 0;            // world rank
  std::int64_t id = 0;     // both ends know it; those of an edge come in the same order at both
  Event* ready = nullptr;  // of a send: the data are there; of a receive: the buffer is free. Null: at once

  // Events of this worker's device, for the transport to record: when the bytes begin to move, and when they have. A
  // transport may put the other end's in their place; null where only the other end knows.
  Event* started = nullptr;
  Event* done = nullptr;
  std::atomic<bool> placed{false};  // `done` stands on a stream: it may be waited for
};

// How the devices of workers reach each other: sends, receives and sums are put on streams and move when what they wait
// for is done. Messages of one edge move in order; those of different edges never wait for each other. All calls by the
// worker's one thread, which issues everything in the order of the graph's vertices, as all workers do: so nobody waits
// for what is issued later.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  // Before anything else, by all workers together: makes the connections, and uses each once.
  virtual void connect(const DeviceLinks& links, Device& device) = 0;
  // Return at once; `placed` is set here or in a later `progress`.
  virtual void send(DeviceMessage& message) = 0;
  virtual void receive(DeviceMessage& message) = 0;
  // To be called again and again while the worker waits for anything. Throws Stopped once the run has been stopped,
  // DeviceError if the transport has failed.
  virtual void progress() = 0;
  // Group `index` of the links; null where this worker is not one of it.
  virtual StreamGroup* group(std::size_t index) = 0;
};

}  // namespace sluice
