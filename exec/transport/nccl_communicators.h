#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/transport/nccl.h"
#include "exec/transport/nccl_functions.h"
#include "exec/transport/transport.h"
#include "kernels/device.h"

namespace sluice::exec {

// All communicators of a process, which block the host. Each is used by one thread at a time; `abort` may be called by
// any thread.
class NcclCommunicators {
 public:
  NcclCommunicators(const NcclFunctions& functions, Device& device, int rank, int size, const NcclOptions& options);
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  Device& device() const { return device_; }
  const NcclOptions& options() const { return options_; }
  const NcclFunctions& functions() const { return functions_; }

  // Creates the communicator of the world; called by all ranks together.
  void make_world(const NcclId& id, const Transport& host);
  // Creates one communicator for each of `members` (disjoint sets of world ranks); called by all ranks of the world
  // together. Returns the one of this rank, or null. `most_blocks`: of a device per operation; 0: chosen by NCCL.
  NcclCommunicator split(const std::vector<std::vector<int>>& members, int most_blocks, const std::string& what,
                         const Transport& host);

  // Calls NCCL, which enqueues an operation without waiting for other ranks. Throws DeviceError if it fails, Stopped
  // once the communicators have been aborted.
  template <typename Call>
  void issue(NcclCommunicator communicator, const char* name, const std::string& what, Call&& call) {
    const std::lock_guard lock(calls_);
    throw_if_aborted();
    check(call(), communicator, name, what);
  }
  // The same for a call that waits for other ranks, and that only an abort can end: the creation of a communicator
  // (null, or the one that it is split from), and its first use. It runs on a thread of its own, whose end is waited
  // for as by wait_until. The thread may be left behind inside NCCL: once NCCL returns, `call` accesses only what it
  // owns.
  void issue_and_wait(NcclCommunicator communicator, const char* name, const std::string& what, const Transport& host,
                      std::function<NcclResult()> call);
  // Throws DeviceError for an error of operations that are enqueued, such as the death of a peer; else as `issue`.
  void look_at(NcclCommunicator communicator, const std::string& what);

  // Polls `condition` until it is true. Throws Stopped if `host` has been stopped, DeviceError if it takes longer than
  // options.patience.
  template <typename Condition>
  void wait_until(const std::string& what, const Transport& host, Condition&& condition) {
    const auto began = std::chrono::steady_clock::now();
    while (!condition()) {
      if (host.stopped()) {
        abort();
        throw Stopped("stopped");
      }
      const auto waited = std::chrono::steady_clock::now() - began;
      if (waited > options_.patience) give_up(what);
      if (waited < std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  // See NcclWorld::abort.
  void abort();
  bool aborted() const { return aborted_->load(); }
  // Frees all communicators; aborts those that are not finalized within options.abort_budget.
  void finish() noexcept;

 private:
  void throw_if_aborted() const {
    if (aborted_->load()) throw Stopped("stopped");
  }
  std::future<NcclResult> on_own_thread(std::function<NcclResult()> call);
  void keep(NcclCommunicator communicator);
  void check(NcclResult result, NcclCommunicator communicator, const char* name, const std::string& what) const;
  [[noreturn]] void give_up(const std::string& what) const;
  NcclConfig configuration(int most_blocks) const;

  const NcclFunctions& functions_;
  Device& device_;
  int rank_;
  int size_;
  NcclOptions options_;
  std::mutex calls_;                             // held during calls of NCCL that do not wait for other ranks
  std::vector<NcclCommunicator> communicators_;  // the world's first
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);  // also of own threads
};

// Transport of the messages between devices; `host` reports when the run has been stopped.
std::unique_ptr<DeviceTransport> make_nccl_devices(NcclCommunicators& communicators, const Transport& host);

// Partitions `members` into rounds that one split can create: sets of a round have no rank in common. Returns ascending
// indices.
std::vector<std::vector<std::size_t>> rounds_without_overlap(const std::vector<std::vector<int>>& members);

}  // namespace sluice::exec
