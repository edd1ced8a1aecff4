#pragma once

#include <atomic>
#include <chrono>
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

// All communicators of a process. None of them blocks the host. Each is used by one thread at a time, and only one
// thread may have an operation in progress: NCCL keeps operations in progress per thread. `abort` may be called by any
// thread.
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
  void make_world(const NcclId& id);
  // Creates one communicator for each of `members` (disjoint sets of world ranks); called by all ranks of the world
  // together. Returns the one of this rank, or null. `most_blocks`: of a device per operation; 0: chosen by NCCL.
  NcclCommunicator split(const std::vector<std::vector<int>>& members, int most_blocks, const std::string& what,
                         const Transport* host);

  // Calls NCCL once and returns whether the operation is enqueued on its stream. Throws DeviceError if it fails,
  // Stopped once the communicators have been aborted.
  template <typename Call>
  bool issue(NcclCommunicator communicator, const char* name, const std::string& what, Call&& call) {
    const std::lock_guard lock(calls_);
    throw_if_aborted();
    const NcclResult result = call();
    check(result, communicator, name, what);
    return result == kNcclSuccess;
  }
  // Returns whether an operation that was in progress is enqueued by now. Throws as `issue`.
  bool settled(NcclCommunicator communicator, const std::string& what);

  // Polls `condition` until it is true. Throws Stopped if `host` (unless null) has been stopped, DeviceError if it
  // takes longer than options.patience.
  template <typename Condition>
  void wait_until(const std::string& what, const Transport* host, Condition&& condition) {
    const auto began = std::chrono::steady_clock::now();
    while (!condition()) {
      if (host != nullptr && host->stopped()) {
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
  bool aborted() const { return aborted_.load(); }
  // Frees all communicators; aborts those that are not finalized within options.abort_budget.
  void finish() noexcept;

 private:
  void throw_if_aborted() const {
    if (aborted_.load()) throw Stopped("stopped");
  }
  void keep(NcclCommunicator communicator);
  void check(NcclResult result, NcclCommunicator communicator, const char* name, const std::string& what) const;
  [[noreturn]] void give_up(const std::string& what) const;
  NcclConfig configuration(int most_blocks) const;

  const NcclFunctions& functions_;
  Device& device_;
  int rank_;
  int size_;
  NcclOptions options_;
  std::mutex calls_;                             // held during every call of NCCL, none of which blocks
  std::vector<NcclCommunicator> communicators_;  // the world's first
  std::atomic<bool> aborted_{false};
};

// Transport of the messages between devices; `host` reports when the run has been stopped.
std::unique_ptr<DeviceTransport> make_nccl_devices(NcclCommunicators& communicators, const Transport& host);

// Partitions `members` into rounds that one split can create: sets of a round have no rank in common. Returns ascending
// indices.
std::vector<std::vector<std::size_t>> rounds_without_overlap(const std::vector<std::vector<int>>& members);

}  // namespace sluice::exec
