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

// What can be seen of a worker at one moment.
struct WorkerView {
  bool seen = false;  // false: it runs where its recorder cannot be read, and the rest means nothing
  ProcessState process = ProcessState::running;
  Doing compute;
  Doing collective;
};

// How long things may take. Every wait is judged by what it waits for in the end, never by its own length.
struct WaitLimits {
  std::int64_t floor_ns = 5'000'000'000;              // an op's deadline is the larger of this and
  double multiple = 20;                               // so many times what is expected of it
  std::function<std::int64_t(VertexId)> expected_ns;  // none: the floor is the deadline
  std::int64_t idle_ns = 60'000'000'000;              // starting, or between two steps, while others wait
  std::int64_t grace_ns = 500'000'000;                // after a process died or a worker failed

  std::int64_t deadline_ns(VertexId v) const;
};

// Why a worker does not go on.
enum class RootCause : std::uint8_t {
  none,     // it does: whoever waits for it has to
  slow,     // inside an op past its deadline
  dead,     // its process has ended
  failed,   // it says so itself, or that it was stopped
  lost,     // what it sent, or a part of a collective, does not arrive
  stopped,  // suspended, idle past the limit, or does not see that what it waits for is done
  ring,     // a ring of waits
};

struct WaitLink {
  int world_rank = 0;
  WorkerThread thread = WorkerThread::compute;
  std::string
      text;  // what it does: "waits for F(stage 3, mb 7) from rank 2", "is inside W(stage 2, mb 5) since 41.0 s"
};

struct WaitReport {
  bool broken = false;  // the root is at fault, and has been for longer than the limits allow
  RootCause cause = RootCause::none;
  int world_rank = -1;             // of the root; of a lost message its sender; of a ring its lowest; -1: nobody does
  int step = 0;                    // anything
  std::optional<VertexId> vertex;  // that the root is in; of a lost message, the transfer
  std::string op;                  // its name, or ""
  std::string root;                // a sentence about it
  // From the one that is farthest from the root to the root; of a ring once around.
  std::vector<WaitLink> links;
  std::string chain;         // the links as one sentence: "rank 3 waits for ... from rank 2, which is inside ..."
  std::vector<int> waiting;  // world ranks that wait for the root, over however many others

  // Root, chain and who waits, a line each.
  std::string text() const;
};

// "rank 3", or "rank 5 (pipeline 1, data 1, tensor 0)" where data or tensor parallelism make ranks alike.
std::string rank_name(const RecorderOwner& owner, bool parallel);

// The world ranks that take part in the collective `v` together with `world_rank`, itself included, ascending. A
// gradient_reduce and a parameter_gather are between the data ranks of one pipeline and tensor rank; replica_reduce
// and tied_embedding between the collective's pipeline ranks with one data and tensor rank; global_norm between all
// pipeline and tensor ranks with one data rank.
std::vector<int> collective_ranks(const OpGraph& graph, const std::vector<RecorderOwner>& owners, VertexId v,
                                  int world_rank);

// Follows who waits for whom, from what the two threads of each worker do:
//  - a thread that waits for a transfer waits for its sender's compute thread; if that is past it, the message is lost;
//  - one that waits for another vertex, for the thread that runs it, on its own worker where that takes part;
//  - one that sums waits for the tensor ranks of its stage, one that exchanges for those that share the collective, as
//    long as they have not come; once all have, something of it is lost;
//  - an idle collective thread waits for its compute thread.
// A worker's compute thread runs its ops, its optimizer steps and its sends in ascending order of their ids, its
// collective thread its collectives, so what a thread is in tells what is behind it.
class WaitChains {
 public:
  // `owners` by world rank. `graph` outlives this.
  WaitChains(const OpGraph& graph, std::vector<RecorderOwner> owners, WaitLimits limits);
  ~WaitChains();

  // The worst there is: of those at fault the one that explains most (a dead process before what follows from it),
  // else what most workers wait for. `workers` by world rank, seen at `now_ns` of the clock of Doing::since_ns. Calls
  // follow one another in time: when a process was first seen dead, or a message first seen sent, is kept.
  WaitReport examine(const std::vector<WorkerView>& workers, std::int64_t now_ns);

 private:
  struct Memory;

  const OpGraph& graph_;
  std::vector<RecorderOwner> owners_;
  WaitLimits limits_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace sluice::exec
