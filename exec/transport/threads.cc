#include "exec/transport/threads.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "exec/steady_clock.h"

namespace sluice::exec {
namespace {

// Unmatched sends and receives of one sender to one receiver on one channel.
struct ThreadMailbox {
  std::mutex mutex;
  Message* sends = nullptr;
  Message* receives = nullptr;
};

void append(Message*& list, Message& message) {
  Message** end = &list;
  while (*end != nullptr) end = &(*end)->next;
  *end = &message;
}

Message* take(Message*& list, std::int64_t id) {
  for (Message** at = &list; *at != nullptr; at = &(*at)->next) {
    if ((*at)->id != id) continue;
    Message* found = *at;
    *at = found->next;
    return found;
  }
  return nullptr;
}

// Change counter. Waiting polls for a while before it sleeps, since a message often arrives within microseconds.
class Bell {
 public:
  std::uint32_t value() const { return count_.load(); }
  void ring() {
    count_.fetch_add(1);
    count_.notify_all();
  }
  void wait(std::uint32_t seen, int looks) const {
    for (int i = 0; i < looks; ++i) {
      if (count_.load(std::memory_order_relaxed) != seen) return;
      std::this_thread::yield();
    }
    count_.wait(seen);
  }

 private:
  std::atomic<std::uint32_t> count_{0};
};

}  // namespace

void on_threads(int workers, const std::function<void(Transport&)>& work) {
  ThreadFabric fabric(workers);
  std::mutex mutex;
  std::exception_ptr failure;
  const auto body = [&](int rank) {
    try {
      work(fabric.worker(rank));
    } catch (const Stopped&) {  // another worker has failed
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      fabric.worker(rank).stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < workers; ++rank) threads.emplace_back(body, rank);
  }
  if (failure) std::rethrow_exception(failure);
}

struct ThreadFabric::Shared {
  explicit Shared(int workers)
      : size(workers),
        mailboxes(static_cast<std::size_t>(workers) * static_cast<std::size_t>(workers) * kNumChannels) {}

  ThreadMailbox& mailbox(int from, int to, Channel channel) {
    const auto at = (from * size + to) * kNumChannels + static_cast<int>(channel);
    return mailboxes[at];
  }

  int size;
  int looks = 50;
  std::atomic<bool> stopped{false};
  std::vector<ThreadMailbox> mailboxes;
  std::vector<std::array<Bell, kNumChannels>> bells{static_cast<std::size_t>(size)};
};

class ThreadFabric::Worker : public Transport {
 public:
  Worker(Shared& shared, int rank) : shared_(shared), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return shared_.size; }

  void post_send(Message& message) override {
    meet(shared_.mailbox(rank_, message.peer, message.channel), message, true);
  }
  void post_receive(Message& message) override {
    meet(shared_.mailbox(message.peer, rank_, message.channel), message, false);
  }
  bool poll(Message& message) override {
    throw_if_stopped();
    return message.done.load(std::memory_order_acquire);
  }

  std::uint32_t changes(Channel channel) const override { return bell(rank_, channel).value(); }
  void sleep(Channel channel, std::uint32_t seen) override { bell(rank_, channel).wait(seen, shared_.looks); }
  void wake(Channel channel) override { bell(rank_, channel).ring(); }
  void stop_waiting() override {
    shared_.stopped.store(true);
    for (auto& of_worker : shared_.bells) {
      for (Bell& bell : of_worker) bell.ring();
    }
  }
  bool stopped() const override { return shared_.stopped.load(); }

 protected:
  // A thread that copies holds the mailbox, and one that locks it later sees that the run has been stopped.
  void quiesce() override {
    for (int peer = 0; peer < shared_.size; ++peer) {
      for (int channel = 0; channel < kNumChannels; ++channel) {
        const std::lock_guard to(shared_.mailbox(rank_, peer, static_cast<Channel>(channel)).mutex);
      }
      for (int channel = 0; channel < kNumChannels && peer != rank_; ++channel) {
        const std::lock_guard from(shared_.mailbox(peer, rank_, static_cast<Channel>(channel)).mutex);
      }
    }
  }

 private:
  Bell& bell(int rank, Channel channel) const { return shared_.bells[rank][static_cast<std::size_t>(channel)]; }

  void meet(ThreadMailbox& box, Message& message, bool sends) {
    message.done.store(false, std::memory_order_relaxed);
    message.next = nullptr;
    {
      const std::lock_guard lock(box.mutex);
      // After a stop the owner of a buffer may have left.
      if (stopped()) return;
      Message* other = take(sends ? box.receives : box.sends, message.id);
      if (other == nullptr) return append(sends ? box.sends : box.receives, message);
      Message& from = sends ? message : *other;
      Message& to = sends ? *other : message;
      if (from.bytes != to.bytes) throw std::logic_error("a send and its receive differ in size");
      if (from.bytes > 0) std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes));
      from.done_ns = to.done_ns = now_ns();
      other->done.store(true, std::memory_order_release);
      message.done.store(true, std::memory_order_release);
    }
    bell(message.peer, message.channel).ring();
  }

  Shared& shared_;
  int rank_;
};

ThreadFabric::ThreadFabric(int workers) : shared_(std::make_unique<Shared>(workers)) {
  // With more workers than cores, polling takes a core from a worker that computes.
  if (workers > static_cast<int>(std::thread::hardware_concurrency())) shared_->looks = 1;
  for (int rank = 0; rank < workers; ++rank) workers_.push_back(std::make_unique<Worker>(*shared_, rank));
}

ThreadFabric::~ThreadFabric() = default;

Transport& ThreadFabric::worker(int rank) { return *workers_[rank]; }

}  // namespace sluice::exec
