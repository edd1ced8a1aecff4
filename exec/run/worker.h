#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "exec/plan/run_plan.h"
#include "exec/plan/woven_steps.h"
#include "exec/run/faults.h"
#include "exec/run/token_source.h"
#include "exec/transport/device_transport.h"
#include "exec/transport/transport.h"
#include "exec/watch/recorder.h"
#include "kernels/device.h"

namespace sluice::exec {

// What a worker needs in addition to its plan; everything outlives it.
struct WorkerServices {
  const TokenSource* tokens = nullptr;
  Recorder* recorder = nullptr;       // may be null
  const FaultPlan* faults = nullptr;  // may be null
  // For a run on devices (RunSpec::kernels): the device of this worker, and its transport.
  Device* device = nullptr;
  DeviceTransport* device_transport = nullptr;
  std::mutex* queries = nullptr;   // see WorkerDevice
  std::int64_t memory_margin = 0;  // likewise
};

// Where the time of a worker went in one run of the graph, in nanoseconds of its compute thread or of the compute
// stream of its device.
struct WorkerTimes {
  std::int64_t total = 0;    // from the start of its first step to the end of its last
  std::int64_t kernels = 0;  // inside the calls of the stage, including waits for tensor-parallel ranks
  std::int64_t waiting = 0;  // for messages and collectives
  // The remainder is overhead of the executor.
  std::int64_t overhead() const { return total - kernels - waiting; }
};

// A part of a layer with experts within an op.
struct VertexPart {
  VertexId vertex = 0;
  PartTime time;
};

// Start and end times of the vertices of one worker, by vertex, steady_clock; 0 if it did not run.
struct WorkerClock {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> ends;
  std::vector<VertexPart> parts;  // in the order of time
};

// What a checkpoint has of every parameter.
enum class StatePart : std::uint8_t { weights, first_moment, second_moment };

// State of one chunk in a checkpoint, in host memory: weights, and the first and second Adam moments, each in the order
// of the parameters of the stage; float64 if the run computes in float64, else float32.
struct ChunkState {
  std::vector<std::byte> weights;
  std::vector<std::byte> optimizer_state;
};

// One worker of a run: a pipeline rank of one data-parallel replica and tensor-parallel rank. Its arena is allocated
// once; a run of the graph allocates no memory.
class Worker {
 public:
  Worker(const RunPlan& plan, int world_rank, const WorkerServices& services);
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int world_rank() const { return world_rank_; }
  int pipeline_rank() const { return pipeline_rank_; }
  const RankPlan& rank_plan() const { return rank_; }
  const Stage& stage_of(int chunk) const;

  // Initialises the weights from the seed and zeroes the optimizer state.
  virtual void initialise() = 0;
  // Runs the graph once. `first_step`: training step of its first batch, from 0. learning_rates: one per optimizer
  // step. Throws RunFailure for its own failure, Stopped if the run was stopped because of another worker.
  //
  // `meanwhile` is called once, as soon as a device has work or waits for others, so that it does not idle meanwhile.
  // The results of the previous run stay valid until it returns.
  virtual void run(std::int64_t first_step, std::span<const double> learning_rates,
                   const std::function<void()>& meanwhile) = 0;
  // Reads the times of the last run from the device: called before starts, ends, times and held_bytes are used.
  virtual void read_times() {}
  // Called after `run` has thrown Stopped: throws the exception of a thread of this worker that caused the stop, if
  // any.
  virtual void rethrow_own_error() {}
  // Waits for work enqueued on its device, which may access memory and events of other workers.
  virtual void settle() {}

  // Newest weights and optimizer state; called between two runs. `read_state` copies bytes of one part of it, from byte
  // `first` on.
  virtual void read_state(int chunk, StatePart part, std::int64_t first, std::span<std::byte> out) = 0;
  virtual void set_state(int chunk, const ChunkState& state) = 0;
  // Optimizer steps contained in the newest weights; set before the state.
  std::int64_t steps_done() const { return steps_done_; }
  void set_steps_done(std::int64_t steps) { steps_done_ = steps; }

  // Results of the last run. Losses are sums over the slices that the head of this worker has processed, by batch; 0
  // without a head.
  std::span<const double> losses() const { return losses_; }
  double gradient_norm() const { return norm_; }  // before clipping; 0 if not computed
  // By vertex that ran on this worker, steady_clock. The sender of a transfer has its start, the receiver its end.
  std::span<const std::int64_t> starts() const { return starts_; }
  std::span<const std::int64_t> ends() const { return ends_; }
  // The first parts of ops with experts, at most 65,536; without those of ops that recompute.
  std::span<const VertexPart> parts() const { return parts_; }
  const WorkerTimes& times() const { return times_; }
  // Maximum of the bytes held in the arena, and its size.
  std::int64_t held_bytes() const { return most_held_; }
  std::int64_t arena_bytes() const { return arena_plan_.total_bytes; }

 protected:
  int world_rank_of(int pipeline_rank) const {
    return plan_.layout().world_rank(pipeline_rank, data_rank_, tensor_rank_);
  }
  // Addresses in the arena: weights of a chunk after `version` optimizer steps, gradients, optimizer state; boundary
  // buffers.
  std::byte* weights(int chunk, std::int64_t version) const;
  std::byte* gradients(int chunk, int buffer) const;
  std::byte* optimizer_state(int chunk) const { return arena_ + arena_plan_.optimizer_states[chunk]; }
  std::byte* buffer(int i) const { return arena_ + arena_plan_.buffers[i]; }
  // Returns the arguments of an op, without tokens and targets. `place`: 1 for the second op of a woven block, which
  // has its own scratch; else 0.
  SliceCall slice_call(const OpPlan& op, int place = 0) const;
  // Returns the size of SliceCall::keys_values_gradient, in bytes.
  std::int64_t keys_gradient_bytes(const OpPlan& op) const;
  // Returns whether the op is the first backward of its microbatch; before it the gradients of all keys and values are
  // zeroed.
  bool begins_backward(const OpPlan& op) const;
  bool needs_tokens(const OpPlan& op) const;
  // Returns the arguments of an optimizer step, without its stream.
  OptimizerStep update_of(const PlannedStep& step, std::span<const double> learning_rates) const;
  void doing(WorkerThread thread, Activity activity, VertexId vertex = 0, VertexId waits_for = 0);
  FaultAction fault_at(VertexId vertex) const;
  // Injects the faults of a vertex: sleeps for a delay, or until stopped, calling `meanwhile`; kills the process.
  // Returns them. Throws Stopped.
  FaultAction inject(VertexId vertex, const Transport& transport, const std::function<void()>& meanwhile = {}) const;
  [[noreturn]] void fail_not_finite(VertexId vertex, int microbatch) const;
  // Throws for gradients of this worker that are not finite before `vertex` reads them.
  [[noreturn]] void fail_gradients(VertexId vertex) const;
  // Returns whether an optimizer step of this worker is the first to read all gradients: no collective does.
  bool optimizer_reads_first() const;
  // Returns whether this worker adds the gradients of a chunk to the global norm: one of the replicas of a stage does.
  bool counts_in_norm(int chunk) const;
  // Returns the chunk whose word embedding takes part in the reduction of a tied embedding.
  int embedding_chunk() const;
  // Returns the parts of a woven block, by the index of its step in the plan; nothing for other steps.
  std::span<const WovenStep> program_of(std::size_t step) const;
  // Sums the losses of units by batch.
  void add_up_losses();

  const RunPlan& plan_;
  int world_rank_;
  int pipeline_rank_;
  int data_rank_;
  int tensor_rank_;
  const RankPlan& rank_;
  const ArenaPlan& arena_plan_;
  WorkerServices services_;
  std::byte* arena_ = nullptr;  // in host or device memory

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
  std::vector<VertexPart> parts_;
  WorkerTimes times_;
  std::vector<std::vector<WovenStep>> programs_;  // of the woven blocks that differ

 private:
  void make_programs();

  std::vector<int> program_of_;  // by step, of programs_; kNone: not woven
};

// Creates a worker on the CPU, or on services.device for a plan for devices. Throws std::bad_alloc or DoesNotFit if
// there is no memory for the arena.
std::unique_ptr<Worker> make_worker(const RunPlan& plan, int world_rank, Transport& transport,
                                    const WorkerServices& services);

}  // namespace sluice::exec
