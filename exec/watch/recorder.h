#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::exec {

// What a thread of a worker is doing. A worker has two threads: one for its compute lane and its sends, one for its
// collective lane.
enum class Activity : std::uint8_t {
  starting,
  working,     // inside `vertex`
  waiting,     // for `waits_for`, before `vertex` can start
  reducing,    // inside `vertex`, in an all-reduce with the tensor-parallel ranks
  exchanging,  // inside the collective `vertex`, waiting for its other ranks
  between,     // outside a step: loading data, writing a checkpoint, waiting for the next step
  finished,
  failed,
  stopped,       // ended because another worker failed, or because the run was stopped
  coordinating,  // outside a step: waiting for a control message of, or to, the world rank `waits_for`
  dispatching,   // inside `vertex`, exchanging tokens with the ranks of its expert group
};

// What a worker does outside its steps. `measurement`: all workers measure together, and any may wait for any other.
enum class ControlPhase : std::uint8_t { none, start, next_step, report, checkpoint, measurement };

enum class WorkerThread : std::uint8_t { compute, collective };

// The current activity of a thread.
struct Doing {
  static constexpr VertexId no_vertex = ~VertexId{0};  // of `failed` and `stopped` outside an op

  Activity activity = Activity::starting;
  // Of `between` and `coordinating`: the last completed step (before the first step: -1, or `starting`).
  std::int32_t step = 0;
  // Vertex of the graph that all ranks run, or no_vertex; a ControlPhase when between and coordinating. Undefined when
  // starting and finished.
  VertexId vertex = 0;
  VertexId waits_for = 0;     // set for `waiting` and `coordinating`
  std::int64_t since_ns = 0;  // std::chrono::steady_clock
};

// The worker that writes a recorder file.
struct RecorderOwner {
  int world_rank = 0;
  int pipeline_rank = 0;
  int data_rank = 0;
  int tensor_rank = 0;
  int expert_ranks = 0;  // number of ranks over which the experts are distributed; 0: a model without experts
  int world_size = 1;
  std::int64_t process = 0;  // id, on `host`
  std::string host;
};

struct RecorderLayout;

// Flight recorder of one worker: for each of its two threads a ring buffer of the last `kEvents` activities, the newest
// being the current one, in a memory-mapped file. Other processes read it (exec/watch/recorder_file.h) while the worker
// runs and after it was killed. Recording takes no lock and makes no system call.
class Recorder {
 public:
  static constexpr int kEvents = 4096;

  // Creates the file at `path`, replacing an existing one atomically; both threads are `starting`. Throws InputError
  // naming the path. `graph`, which outlives this or the next `use`, provides the names of vertices, which are stored
  // in the file, so that reading needs no graph.
  Recorder(const std::string& path, const RecorderOwner& owner, const OpGraph& graph);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Records vertices of another graph from now on. Called between two runs of graphs.
  void use(const OpGraph& graph);
  // Records what a thread does from now on. Called by that thread only, or by another one after it has ended. For
  // `failed` and `stopped`, step and vertex are taken from the previous activity.
  void doing(WorkerThread thread, Activity activity, int step, VertexId vertex = 0, VertexId waits_for = 0);
  // Records what the compute thread does outside its steps. `waits_for`: world rank that it waits for, or -1.
  void control(ControlPhase phase, int last_step, int waits_for);

 private:
  RecorderLayout* file_ = nullptr;
  const OpGraph* graph_;
};

}  // namespace sluice::exec
