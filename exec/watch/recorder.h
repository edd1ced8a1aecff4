#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/graph/op_graph.h"

namespace sluice::exec {

// What a thread of a worker is doing. Each worker has two: one for its compute lane and its transfers, one for its
// collective lane.
enum class Activity : std::uint8_t {
  starting,
  working,     // inside `vertex`
  waiting,     // for `waits_for`, before `vertex` can start
  summing,     // inside `vertex`, waiting for tensor-parallel peers
  exchanging,  // inside the collective `vertex`, waiting for the ranks that share it
  between,     // nothing of a step: loading data, writing a checkpoint, waiting for the next step
  finished,
  failed,
  stopped,  // ended because of what another worker met, or because the run was told to end
};
enum class WorkerThread : std::uint8_t { compute, collective };

struct Doing {
  static constexpr VertexId no_vertex = ~VertexId{0};  // of `failed` and `stopped`: in none

  Activity activity = Activity::starting;
  std::int32_t step = 0;      // of `between`: the one that has ended; before the first: `starting`
  VertexId vertex = 0;        // of the graph that all ranks run, or no_vertex; meaningless when starting, between and
                              // finished
  VertexId waits_for = 0;     // of `waiting`
  std::int64_t since_ns = 0;  // std::chrono::steady_clock
};

// Who writes a recorder file.
struct RecorderOwner {
  int world_rank = 0;
  int pipeline_rank = 0;
  int data_rank = 0;
  int tensor_rank = 0;
  int world_size = 1;
  std::int64_t process = 0;  // id, on `host`
  std::string host;
};

struct RecorderLayout;

// The flight recorder of one worker: a ring for each of its two threads of the last `kEvents` things that it did, the
// newest being what it is doing, in a memory-mapped file, so that it can be read by others (exec/watch/recorder_file.h)
// while the worker runs and after it was killed. Writing takes no lock and no system call.
class Recorder {
 public:
  static constexpr int kEvents = 4096;

  // Writes to `path`, made anew: it appears whole, both threads starting. Throws InputError naming it. `graph` (which
  // outlives this) gives the vertices' names in the ring: what is recorded can be read without it.
  Recorder(const std::string& path, const RecorderOwner& owner, const OpGraph& graph);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Each thread calls it for itself alone, or another one once it has ended. Of `failed` and `stopped`, step and vertex
  // are those of what the thread did before, whatever is given.
  void doing(WorkerThread thread, Activity activity, int step, VertexId vertex = 0, VertexId waits_for = 0);

 private:
  RecorderLayout* file_ = nullptr;
  const OpGraph& graph_;
};

}  // namespace sluice::exec
