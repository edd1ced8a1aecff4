#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/collective.h"
#include "kernels/device.h"

namespace sluice::exec {

// Connections between devices by world rank; identical, and in the same order, on every worker.
struct DeviceLinks {
  std::vector<std::pair<int, int>> edges;  // sender, receiver
  std::vector<std::vector<int>> groups;    // ascending; groups with the same members are used on different streams
  std::vector<std::size_t> exchanges;      // of `groups`: those whose StreamGroup::exchange is called

  friend bool operator==(const DeviceLinks&, const DeviceLinks&) = default;
};

// One message between the memories of two devices. The owner keeps it, its buffer and its events in place until it is
// done.
struct DeviceMessage {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  std::size_t edge = 0;    // of the links; this worker is one of its ends
  std::int64_t id = 0;     // known at both ends; messages of an edge have the same order at both
  Event* ready = nullptr;  // send: the data are complete; receive: the buffer is free. Null: immediately

  // Events of this worker's device that the transport records when the transfer begins and ends. A transport may
  // replace them by events of the other end; `started` becomes null if only the other end has it.
  Event* started = nullptr;
  Event* done = nullptr;
  std::atomic<bool> placed{false};  // `done` has been recorded on a stream and may be waited for
};

// How the device of one worker reaches the others in the runs of one plan: sends, receives and collectives are enqueued
// on streams and execute when what they wait for is done. Messages of one edge keep their order; those of different
// edges never wait for each other. Called by one thread of the worker, which issues everything in the order of the
// vertices of the graph. So does every worker, and nobody waits for something that is issued later.
class DeviceConnection {
 public:
  virtual ~DeviceConnection() = default;
  // Both return immediately; `placed` is set here or in a later `progress` or `flush`.
  virtual void send(DeviceMessage& message) = 0;
  virtual void receive(DeviceMessage& message) = 0;
  // Returns when everything that was posted is enqueued that does not wait for another worker. Called before an op is
  // enqueued: the thread may then wait for the device in the middle of the op, and the device for the other workers.
  virtual void flush() {}
  // Called repeatedly while the worker waits for anything. Throws Stopped once the run has been stopped, DeviceError if
  // the transport has failed.
  virtual void progress() = 0;
  // Returns group `index` of the links; null if this worker is not a member.
  virtual StreamGroup* group(std::size_t index) = 0;
  // Sets a function that calls of groups call repeatedly while they wait for other workers; it calls `progress`.
  void while_meeting(std::function<void()> observe) { while_meeting_ = std::move(observe); }

 protected:
  std::function<void()> while_meeting_;
};

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  // Called by all workers together, in the same order: makes the connections and uses each once if its first use takes
  // longer. Connections with equal links may share resources. The device and the transport outlive the connection.
  virtual std::unique_ptr<DeviceConnection> connect(const DeviceLinks& links, Device& device) = 0;
  // Whether waiting for the other end happens on the device, which then does not become idle. The first launch of a
  // kernel waits for an idle device (CUDA loads lazily), so every kernel of a run must have run before its first
  // message is posted.
  virtual bool waits_on_device() const { return false; }
};

}  // namespace sluice::exec
