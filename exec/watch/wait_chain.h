#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/watch/process_state.h"
#include "exec/watch/recorder.h"
#include "model/graph/op_graph.h"

namespace sluice::exec {

// The observed state of a worker at one moment.
struct WorkerView {
  bool seen = false;  // false: its recorder cannot be read from here, and the other fields are undefined
  ProcessState process = ProcessState::running;
  Doing compute;
  Doing collective;
};

// Time limits. A wait is judged by what it finally waits for, never by its own duration.
struct WaitLimits {
  // The deadline of an op is max(floor_ns, multiple * expected_ns), or floor_ns without expected_ns.
  std::int64_t floor_ns = 5'000'000'000;
  double multiple = 20;
  std::function<std::int64_t(VertexId)> expected_ns;
  // While others wait: a thread without work in a step, and one that starts, reports a step, writes a checkpoint or
  // prints (a user may stop the terminal). At least floor_ns.
  std::int64_t idle_ns = 60'000'000'000;
  std::int64_t control_ns = 600'000'000'000;
  std::int64_t start_ns = 600'000'000'000;  // of a process for the others, before they are watched
  std::int64_t grace_ns = 500'000'000;      // after a process died or a worker failed

  std::int64_t deadline_ns(VertexId v) const;
  // Returns the limit of an activity outside the steps.
  std::int64_t outside_ns(const Doing& doing) const;
};

// Why a worker makes no progress.
enum class RootCause : std::uint8_t {
  none,     // it makes progress
  slow,     // inside an op past its deadline
  dead,     // its process has ended
  failed,   // it has recorded a failure, or that it was stopped
  lost,     // a message that it sent, or a message of a collective or between steps, does not arrive
  stopped,  // suspended, idle past the limit, or does not notice that what it waits for is complete
  cycle,    // a cycle of waits
};

// Whether a thread takes part in a measurement of all ranks, and not in a control message of it.
constexpr bool measures(const Doing& doing) {
  return doing.activity == Activity::between && static_cast<ControlPhase>(doing.vertex) == ControlPhase::measurement;
}

// Whether a worker has ended, as opposed to one that makes no progress at this moment.
constexpr bool is_death(RootCause cause) { return cause == RootCause::dead || cause == RootCause::failed; }

// One link of a wait-for chain.
struct WaitLink {
  int world_rank = 0;
  WorkerThread thread = WorkerThread::compute;
  // The predicate of a sentence about it: "waits for F(stage 3, mb 7) from rank 2".
  std::string text;
};

// The root cause of a standstill and the wait-for chain that leads to it.
struct WaitReport {
  bool broken = false;  // the root is at fault for longer than the limits allow
  RootCause cause = RootCause::none;
  // Of the root; the sender of a lost message; the lowest rank of a cycle; -1: no worker is active.
  int world_rank = -1;
  int step = 0;
  std::optional<VertexId> vertex;  // current vertex of the root; the transfer of a lost message
  std::string op;                  // its name, or ""
  std::string root;                // a sentence about the root
  std::vector<WaitLink> links;     // from the worker farthest from the root to the root; of a cycle, once around
  std::string chain;               // the links as one sentence: "rank 3 waits for ... from rank 2, which ..."
  std::vector<int> waiting;        // world ranks that wait for the root, directly or through others

  // Returns root, chain and waiting ranks, one line each.
  std::string text() const;
};

// Returns "rank 3", or with data or tensor parallelism "rank 5 (pipeline 1, data 1, tensor 0)".
std::string rank_name(const RecorderOwner& owner, bool parallel);

// Returns the world ranks that take part in the collective `v` together with `world_rank`, including itself, ascending.
// gradient_reduce and parameter_gather: the data-parallel ranks of one pipeline and tensor rank. replica_reduce and
// tied_embedding: the pipeline ranks of the collective with the same data and tensor rank. global_norm: all pipeline
// and tensor ranks with the same data rank.
std::vector<int> collective_ranks(const OpGraph& graph, const std::vector<RecorderOwner>& owners, VertexId v,
                                  int world_rank);
// Returns the world ranks that exchange tokens of experts with a rank, and that rank.
std::vector<int> expert_group(const std::vector<RecorderOwner>& owners, int world_rank);

// Derives the wait-for chain from the activities of the two threads of each worker:
//  - a thread that waits for a transfer waits for the compute thread of its sender; if that has passed the send, the
//    message is lost;
//  - a thread that waits for another vertex waits for the thread that runs it, on its own worker if that takes part;
//  - a thread in an all-reduce waits for the tensor-parallel ranks of its stage, a thread in a collective for the ranks
//    that share it, until they have joined; once all have joined, one of its messages is lost;
//  - a thread that waits for a control message, outside its steps, waits for the compute thread of the other worker,
//    until that waits for this one: then the message is lost;
//  - a thread that takes part in a measurement waits for all ranks that have ended or are suspended;
//  - an idle collective thread waits for its compute thread.
// A message of a suspended process is not lost: the thread waits for that process. A process that continues gets the
// limits anew.
// A compute thread runs its ops, optimizer steps and sends, and a collective thread its collectives, in ascending order
// of vertex ids. So the current vertex of a thread implies which vertices it has completed.
class WaitChains {
 public:
  // `owners` by world rank. `graph` outlives this.
  WaitChains(const OpGraph& graph, std::vector<RecorderOwner> owners, WaitLimits limits);
  ~WaitChains();

  // Returns the root cause that explains most (a dead process before its consequences), or else the end of the chain
  // that most workers wait for. `workers` by world rank, observed at `now_ns` of the clock of Doing::since_ns.
  // Successive calls have ascending times: when a process was first seen dead, or a message first seen sent, is
  // remembered.
  WaitReport examine(const std::vector<WorkerView>& workers, std::int64_t now_ns);

 private:
  struct Memory;

  const OpGraph& graph_;
  std::vector<RecorderOwner> owners_;
  WaitLimits limits_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace sluice::exec
