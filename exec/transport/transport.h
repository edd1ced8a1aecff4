#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "model/namespaces.h"

namespace sluice::exec {

// What messages are for. Each is a world of its own: messages of one channel never wait for those of another.
enum class Channel : std::uint8_t { transfer, tensor, collective, control };
inline constexpr int kNumChannels = 4;

// One message on its way. The owner keeps it, and the buffer, where they are until it is done.
struct Message {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  int peer = 0;
  Channel channel = Channel::transfer;
  std::int64_t id = 0;  // both ends of a message know it: no two under way between two workers on a channel are alike

  std::int64_t done_ns = 0;  // steady_clock, once it is done
  std::atomic<bool> done{false};
  Message* next = nullptr;                              // the transport's own, as is
  alignas(std::max_align_t) std::byte native[16] = {};  // this
};

// The run ends because of something that another worker met, or because it was told to.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How one worker reaches the others. Nothing is buffered: a send is done when its receive has the bytes. Two threads of
// a worker may use it at once on different channels.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Both return at once. Precondition: the message is done, or was never posted.
  virtual void post_send(Message& message) = 0;
  virtual void post_receive(Message& message) = 0;
  // Whether it is done by now. Throws Stopped once the run has been stopped.
  virtual bool poll(Message& message) = 0;
  // Sleeps until something about this channel may have changed: a message is done, or `wake` was called.
  // `seen` is the value that `changes` had before the condition was looked at.
  virtual std::uint32_t changes(Channel channel) const = 0;
  virtual void sleep(Channel channel, std::uint32_t seen) = 0;
  virtual void wake(Channel channel) = 0;
  // Ends all waiting of this worker, or with threads of all: poll throws from now on.
  virtual void stop() = 0;
  virtual bool stopped() const = 0;

  // Waits until `condition` holds; it is looked at again whenever something changes. Throws Stopped.
  template <typename Condition>
  void wait_until(Channel channel, Condition&& condition) {
    while (true) {
      const std::uint32_t seen = changes(channel);
      if (condition()) return;
      throw_if_stopped();
      sleep(channel, seen);
    }
  }
  void wait(Message& message) {
    wait_until(message.channel, [&] { return poll(message); });
  }

  // Over the control channel, by one thread of every worker. What each has to say, at rank 0, by rank; elsewhere empty.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine);
  // What rank 0 says.
  void broadcast(std::span<std::byte> bytes);
  void barrier();

 protected:
  void throw_if_stopped() {
    if (!stopped()) return;
    quiesce();
    throw Stopped("stopped");
  }
  // Returns when no other worker can still touch a message or a buffer of this one. The run has been stopped.
  virtual void quiesce() = 0;

 private:
  std::int64_t control_messages_ = 0;
};

}  // namespace sluice::exec
