#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exec/watch/wait_chain.h"

namespace sluice::exec {

// State that WaitChains keeps between calls.
struct WaitMemory {
  // By worker: since when its process has not been running.
  struct Trouble {
    ProcessState state = ProcessState::running;
    std::int64_t since_ns = 0;
  };
  // By thread: when it was first seen waiting for something that is complete.
  struct Done {
    Doing wait;
    std::int64_t first_seen_ns = 0;
  };
  std::vector<Trouble> trouble;
  std::vector<std::optional<Done>> done;
};

// One thread of a worker, at index 2 * world rank + WorkerThread.
struct WaitNode {
  std::vector<int> waits_for;  // threads that it waits for; empty: the end of a chain
  RootCause cause = RootCause::none;
  bool broken = false;
  std::int64_t since_ns = 0;  // of the cause, or of the activity
  int culprit = -1;           // world rank; of a lost message: its sender
  bool all_there = false;     // lost: in an all-reduce, collective or control message that all ranks have joined
  bool idle = false;
};

// Returns by transfer the op of the receiver that reads it (not its recomputation); for other vertices graph.size().
std::vector<VertexId> transfer_readers(const OpGraph& graph);

// The wait-for graph of all threads at one moment.
class WaitGraph {
 public:
  WaitGraph(const OpGraph& graph, std::span<const VertexId> readers, const std::vector<RecorderOwner>& owners,
            const WaitLimits& limits, const std::vector<WorkerView>& workers, std::int64_t now_ns, WaitMemory& memory);

  std::span<const WaitNode> nodes() const { return nodes_; }
  const Doing& doing(int node) const {
    const WorkerView& worker = workers_[node / 2];
    return node % 2 == 0 ? worker.compute : worker.collective;
  }
  const WorkerView& worker(int node) const { return workers_[node / 2]; }
  // Returns whether a thread is sending `v` or waiting until it is received.
  bool sends(int node, VertexId v) const;
  // Returns a cycle of nodes, each waiting for the next; empty if there is none.
  std::vector<int> cycle() const;

 private:
  void inspect(int node);
  void inspect_wait(int node, VertexId awaited);
  void inspect_send(int node, VertexId transfer);
  void inspect_collective(int node, const std::vector<int>& ranks);
  void inspect_control(int node);
  void inspect_measurement(int node);
  void inspect_idle(int node);

  void wait_or_lose(int node, int other, VertexId awaited, RootCause cause);
  void set_done(int node, std::int64_t since_ns, std::int64_t allowed_ns, RootCause cause);
  bool is_past(const Doing& doing, int step, VertexId v) const;
  bool ended(int node) const;  // dead, failed or stopped
  // Whether a thread cannot be expected to act: it is not visible, has ended, or its process is suspended.
  bool away(int node) const;
  int world_rank(int pipeline_rank, int like_node) const;
  const RecorderOwner& owner(int node) const { return owners_[node / 2]; }
  WaitNode& at(int node) { return nodes_[node]; }

  const OpGraph& graph_;
  std::span<const VertexId> readers_;
  const std::vector<RecorderOwner>& owners_;
  const WaitLimits& limits_;
  std::vector<WorkerView> workers_;
  std::int64_t now_ns_;
  WaitMemory& memory_;
  std::vector<WaitNode> nodes_;
  std::vector<char> remembered_;  // by node: still waits for something that is complete
};

}  // namespace sluice::exec
