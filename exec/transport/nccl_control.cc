#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "exec/steady_clock.h"
#include "exec/transport/nccl_communicators.h"

namespace sluice::exec {
namespace {

constexpr std::int64_t kControlPieceBytes = std::int64_t{1} << 20;

// Messages are sent one after the other, in pieces: host, pinned memory, device, NCCL, and back.
class NcclControl final : public Transport {
 public:
  explicit NcclControl(NcclCommunicators& communicators)
      : communicators_(communicators),
        device_(communicators.device()),
        communicator_(communicators.split({all_ranks(communicators.size())}, 1, "control messages", nullptr)),
        stream_(device_.make_stream(StreamPriority::high)),
        moved_(device_.make_event()),
        pinned_(device_.allocate_host(kControlPieceBytes)),
        on_device_(device_.allocate(kControlPieceBytes)) {}
  ~NcclControl() override {
    try {
      // After an abort something may still use the memory on the device: then it is not freed.
      if (stopped() || communicators_.aborted()) return;
      device_.make_current();
      device_.release(on_device_);
      device_.release_host(pinned_);
    } catch (const std::exception&) {
      // The process ends.
    }
  }

  int rank() const override { return communicators_.rank(); }
  int size() const override { return communicators_.size(); }
  void post_send(Message& message) override { post(message, true); }
  void post_receive(Message& message) override { post(message, false); }

  bool poll(Message& message) override {
    if (message.done.load(std::memory_order_acquire)) return true;
    throw_if_stopped();
    device_.make_current();
    advance();
    return message.done.load(std::memory_order_acquire);
  }

  std::uint32_t changes(Channel channel) const override { return counts_[static_cast<std::size_t>(channel)].load(); }
  void sleep(Channel channel, std::uint32_t seen) override {
    if (channel == Channel::control) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else {
      counts_[static_cast<std::size_t>(channel)].wait(seen);
    }
  }
  void wake(Channel channel) override {
    counts_[static_cast<std::size_t>(channel)].fetch_add(1);
    counts_[static_cast<std::size_t>(channel)].notify_all();
  }
  void stop() override {
    stopped_.store(true);
    for (int channel = 0; channel < kNumChannels; ++channel) wake(static_cast<Channel>(channel));
    communicators_.abort();
  }
  bool stopped() const override { return stopped_.load(); }

 protected:
  void quiesce() override {}  // the process ends

 private:
  struct Posted {
    Message* message;
    bool sends;
    std::int64_t moved = 0;
    enum { waiting, issued, moving } state = waiting;
  };

  static std::vector<int> all_ranks(int size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void post(Message& message, bool sends) {
    if (message.channel != Channel::control) throw std::logic_error("NCCL carries only control messages between hosts");
    message.done.store(false, std::memory_order_relaxed);
    posted_.push_back({&message, sends});
  }

  std::string what(const Posted& posted) const {
    return fmt::format("control message {} {} rank {}", posted.message->id, posted.sends ? "to" : "from",
                       posted.message->peer);
  }

  // Advances the first message as far as possible without waiting, and then the later ones.
  void advance() {
    while (!posted_.empty()) {
      Posted& first = posted_.front();
      Message& message = *first.message;
      const std::int64_t piece = std::min(kControlPieceBytes, message.bytes - first.moved);
      if (piece > 0 && !move(first, piece)) return;
      if (first.moved < message.bytes) continue;
      message.done_ns = now_ns();
      message.done.store(true, std::memory_order_release);
      posted_.pop_front();
    }
  }

  // Returns whether the next piece has arrived.
  bool move(Posted& posted, std::int64_t piece) {
    Message& message = *posted.message;
    const auto bytes = static_cast<std::size_t>(piece);
    if (posted.state == Posted::waiting) {
      const NcclFunctions& nccl = communicators_.functions();
      void* const stream = stream_->native();
      bool done = false;
      if (posted.sends) {
        std::memcpy(pinned_, message.data + posted.moved, bytes);
        device_.copy(on_device_, pinned_, piece, *stream_);
        done = communicators_.issue(communicator_, "ncclSend", what(posted), [&] {
          return nccl.send(on_device_, bytes, NcclType::int8, message.peer, communicator_, stream);
        });
      } else {
        done = communicators_.issue(communicator_, "ncclRecv", what(posted), [&] {
          return nccl.receive(on_device_, bytes, NcclType::int8, message.peer, communicator_, stream);
        });
      }
      posted.state = Posted::issued;
      if (done) leave(posted, piece);
    }
    if (posted.state == Posted::issued) {
      if (!communicators_.settled(communicator_, what(posted))) return false;
      leave(posted, piece);
    }
    // Errors of a message in flight are reported only here.
    if (!device_.done(*moved_)) {
      communicators_.settled(communicator_, what(posted));
      return false;
    }
    // What ended because of an abort has received nothing.
    if (communicators_.aborted()) throw Stopped("stopped");
    if (!posted.sends) std::memcpy(message.data + posted.moved, pinned_, bytes);
    posted.moved += piece;
    posted.state = Posted::waiting;
    return true;
  }

  void leave(Posted& posted, std::int64_t piece) {
    if (!posted.sends) device_.copy(pinned_, on_device_, piece, *stream_);
    device_.record(*moved_, *stream_);
    posted.state = Posted::moving;
  }

  NcclCommunicators& communicators_;
  Device& device_;
  NcclCommunicator communicator_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> moved_;
  std::byte* pinned_;
  std::byte* on_device_;
  std::deque<Posted> posted_;
  std::array<std::atomic<std::uint32_t>, kNumChannels> counts_{};
  std::atomic<bool> stopped_{false};
};

}  // namespace

std::unique_ptr<Transport> make_nccl_control(NcclCommunicators& communicators) {
  return std::make_unique<NcclControl>(communicators);
}

}  // namespace sluice::exec
