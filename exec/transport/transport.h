#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "model/namespaces.h"

namespace sluice::exec {

// Purposes of messages. Channels are independent: messages of one channel never wait for those of another.
enum class Channel : std::uint8_t { transfer, tensor, collective, control, expert };
inline constexpr int kNumChannels = 5;

// One message. The owner keeps it and its buffer in place until it is done.
struct Message {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  int peer = 0;
  Channel channel = Channel::transfer;
  std::int64_t id = 0;  // known at both ends; unique among the messages in flight between two workers on a channel

  std::int64_t done_ns = 0;  // steady_clock, once it is done
  std::atomic<bool> done{false};
  // Used by the transport.
  Message* next = nullptr;
  alignas(std::max_align_t) std::byte native[16] = {};
};

// The run was stopped, because another worker failed or on request.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Connects one worker to the others. Nothing is buffered: a send is done when its receive has the bytes. The threads
// of a worker may use it concurrently on different channels.
class Transport {
 public:
  static constexpr int kRoot = 0;  // the rank of gather and broadcast

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Both return immediately. Precondition: the message is done, or was never posted.
  virtual void post_send(Message& message) = 0;
  virtual void post_receive(Message& message) = 0;
  // Returns whether the message is done. Throws Stopped once the run has been stopped.
  virtual bool poll(Message& message) = 0;
  // `changes` counts events of a channel: a message is done, or `wake` was called. `sleep` returns once the count
  // differs from `seen`, the value before the caller checked its condition, or earlier.
  virtual std::uint32_t changes(Channel channel) const = 0;
  virtual void sleep(Channel channel, std::uint32_t seen) = 0;
  virtual void wake(Channel channel) = 0;
  // Ends all waiting of this worker, or of all workers that are threads: poll throws from now on. Then calls what
  // `on_stop` was given.
  void stop();
  virtual bool stopped() const = 0;

  // Waits until `condition` is true, evaluating it after every change of the channel. Throws Stopped.
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

  // Sets a function that is called when a wait of the functions below begins, with the rank that is waited for, and
  // with -1 when it ends. They are called by one thread of the worker.
  void on_control_wait(std::function<void(int peer)> notify) { on_control_wait_ = std::move(notify); }

  // Sets a function that ends what waits elsewhere, such as on a device, where the worker's own thread may wait for it;
  // none, if empty. Returns when no call of the former one is under way.
  void on_stop(std::function<void()> end);

  // Collectives over the control channel, along a tree of log2(size) levels; called by one thread of every worker.
  // Gather returns the bytes of each rank on rank 0, by rank; an empty vector elsewhere.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine);
  // Sends the bytes of rank 0 to all ranks.
  void broadcast(std::span<std::byte> bytes);
  void barrier();
  // One message between two ranks, for which no other rank takes part. Not while a collective is under way.
  void send(int peer, std::span<const std::byte> bytes);
  void receive(int peer, std::span<std::byte> bytes);

 protected:
  virtual void stop_waiting() = 0;
  void throw_if_stopped() {
    if (!stopped()) return;
    quiesce();
    throw Stopped("stopped");
  }
  // Returns when no other worker can access a message or buffer of this one any more. The run has been stopped.
  virtual void quiesce() = 0;

 private:
  void wait_for_control(Message& message);

  std::int64_t control_messages_ = 0;
  std::function<void(int peer)> on_control_wait_;
  std::mutex ending_;
  std::function<void()> end_elsewhere_;
};

// What transports between processes share: a count of changes per channel, and the end of waiting in this process.
class ProcessTransport : public Transport {
 public:
  std::uint32_t changes(Channel channel) const final { return count_of(channel).load(); }
  void wake(Channel channel) final {
    count_of(channel).fetch_add(1);
    count_of(channel).notify_all();
  }
  bool stopped() const final { return stopped_.load(); }

 protected:
  void stop_waiting() final {
    stopped_.store(true);
    for (int channel = 0; channel < kNumChannels; ++channel) wake(static_cast<Channel>(channel));
  }
  void quiesce() final {}  // the other processes do not access this one's buffers
  // Sleeps until the count differs from `seen`.
  void wait_for_change(Channel channel, std::uint32_t seen) const { count_of(channel).wait(seen); }

 private:
  std::atomic<std::uint32_t>& count_of(Channel channel) { return counts_[static_cast<std::size_t>(channel)]; }
  const std::atomic<std::uint32_t>& count_of(Channel channel) const {
    return counts_[static_cast<std::size_t>(channel)];
  }

  std::array<std::atomic<std::uint32_t>, kNumChannels> counts_{};
  std::atomic<bool> stopped_{false};
};

// Returns a transport between MPI processes, one worker each. MPI is initialised with MPI_THREAD_SERIALIZED or better.
// Waiting polls and yields. Throws std::runtime_error if MPI reports an error.
std::unique_ptr<Transport> make_mpi_transport();

}  // namespace sluice::exec
