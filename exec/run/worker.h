#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/run/faults.h"
#include "exec/run/token_source.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "exec/watch/recorder.h"
#include "kernels/device.h"

namespace sluice::exec {

// What a worker needs besides its plan; all outlive it.
struct WorkerServices {
  const TokenSource* tokens = nullptr;
  Recorder* recorder = nullptr;       // may be null
  const FaultPlan* faults = nullptr;  // may be null
  // Of a run on devices (RunSpec::kernels): this worker's own, and how it reaches the others.
  Device* device = nullptr;
  DeviceTransport* device_transport = nullptr;
};

// Where a worker's time went in one run of the graph; nanoseconds of its compute thread, or of its device's compute
// stream.
struct WorkerTimes {
  std::int64_t total = 0;    // from its first step's beginning to the end of its last
  std::int64_t kernels = 0;  // inside the stage's calls, with what they wait for tensor-parallel peers
  std::int64_t waiting = 0;  // for messages and collectives
  // The rest is the executor's own.
  std::int64_t overhead() const { return total - kernels - waiting; }
};

// When one worker began and ended its vertices, steady_clock; 0 where it had no part in one or did not come to it.
struct WorkerClock {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> ends;
};

// What a checkpoint has of one chunk, in host memory: weights, and the optimizer's first and second moments, each in
// the order of the stage's parameters, float64 where the run computes in that, else float32.
struct ChunkState {
  std::vector<std::byte> weights;
  std::vector<std::byte> moments;
};

// One worker of a run: a rank of the pipeline, of one data-parallel replica and one tensor-parallel share. Its arena is
// allocated once; a run of the graph allocates nothing.
class Worker {
 public:
  Worker(const RunPlan& plan, int world_rank, const WorkerServices& services);
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int world_rank() const { return world_rank_; }
  int pipeline_rank() const { return pipeline_rank_; }
  const RankPlan& rank_plan() const { return rank_; }
  // Of chunk `chunk`.
  const Stage& stage_of(int chunk) const;

  // Fresh weights from the seed, moments zero.
  virtual void initialise() = 0;
  // Runs the graph once. `first_step` is the training step of its first batch, from 0; learning_rates has one for each
  // batch. Throws RunFailure for its own failure, Stopped if another worker's ended the run.
  virtual void run(std::int64_t first_step, std::span<const double> learning_rates) = 0;
  // After `run` has thrown Stopped: throws what a thread of this worker's own threw, if it was that which ended the
  // run.
  virtual void rethrow_own_error() {}
  // Waits for what it has put on its device, which may still look at other workers' memory and events.
  virtual void settle() {}

  // The newest weights and the moments, between two runs.
  virtual ChunkState state(int chunk) = 0;
  virtual void set_state(int chunk, const ChunkState& state) = 0;
  // Optimizer steps behind the newest weights; set before the state is.
  std::int64_t steps_done() const { return steps_done_; }
  void set_steps_done(std::int64_t steps) { steps_done_ = steps; }

  // Of the last run. Sums over the slices that this worker's head has seen, by batch; zeros without a head.
  std::span<const double> losses() const { return losses_; }
  double gradient_norm() const { return norm_; }  // before clipping; 0 without
  // By vertex, steady_clock: of what ran on this worker. Of a transfer the sender has the start, the receiver the end.
  std::span<const std::int64_t> starts() const { return starts_; }
  std::span<const std::int64_t> ends() const { return ends_; }
  const WorkerTimes& times() const { return times_; }
  // The most bytes that were held in the arena at once, and all of the arena.
  std::int64_t held_bytes() const { return most_held_; }
  std::int64_t arena_bytes() const { return arena_plan_.total_bytes; }

 protected:
  int world_rank_of(int pipeline_rank) const {
    return plan_.layout().world_rank(pipeline_rank, data_rank_, tensor_rank_);
  }
  // In the arena: of chunk `chunk` the weights with so many steps behind them, and so on; boundary buffer i.
  std::byte* weights(int chunk, std::int64_t version) const;
  std::byte* gradients(int chunk, int buffer) const;
  std::byte* moments(int chunk) const { return arena_ + arena_plan_.moments[chunk]; }
  std::byte* buffer(int i) const { return arena_ + arena_plan_.buffers[i]; }
  // What an op works on, without tokens and targets.
  SliceCall slice_call(const OpPlan& op);
  // Whether it is the first backward of its microbatch, before which the gradients of all keys and values are zeroed.
  bool begins_backward(const OpPlan& op) const;
  bool needs_tokens(const OpPlan& op) const;
  // The update of an optimizer step, without what it is put on.
  OptimizerStep update_of(const PlannedStep& step, std::span<const double> learning_rates) const;
  void doing(WorkerThread thread, Activity activity, VertexId vertex = 0, VertexId waits_for = 0);
  FaultAction fault_at(VertexId vertex) const;
  // Sleeps through a delay, and for ever where the worker is to stop; kills the process. Throws Stopped.
  void suffer(const FaultAction& action, const Transport& transport) const;
  [[noreturn]] void fail_not_finite(VertexId vertex, int microbatch) const;
  // Whether this worker counts the gradients of a chunk in the global norm: one of a stage's replicas does.
  bool counts_in_norm(int chunk) const;
  // Where a tied embedding's sum takes place: its chunk, and its parameter.
  int embedding_chunk() const;
  // By batch, from what each unit's head has seen.
  void add_up_losses();

  const RunPlan& plan_;
  int world_rank_;
  int pipeline_rank_;
  int data_rank_;
  int tensor_rank_;
  const RankPlan& rank_;
  const ArenaPlan& arena_plan_;
  WorkerServices services_;
  std::byte* arena_ = nullptr;  // the host's, or the device's

  std::int64_t run_number_ = 0;
  std::int64_t first_step_ = 0;
  std::int64_t steps_done_ = 0;
  std::int64_t version_base_ = 0;  // steps_done_ when the run began
  double norm_ = 0;
  std::int64_t most_held_ = 0;
  std::vector<double> unit_losses_;
  std::vector<double> losses_;
  std::vector<std::int64_t> starts_;
  std::vector<std::int64_t> ends_;
  WorkerTimes times_;

 private:
  std::vector<std::byte*> keys_values_;  // of the slices of one microbatch
  std::vector<std::byte*> keys_values_gradients_;
};

// On the CPU, or on services.device where the plan is for devices. Throws std::bad_alloc or DoesNotFit if there is no
// memory for the arena.
std::unique_ptr<Worker> make_worker(const RunPlan& plan, int world_rank, Transport& transport,
                                    const WorkerServices& services);

}  // namespace sluice::exec
