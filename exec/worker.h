#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "exec/faults.h"
#include "exec/group_sum.h"
#include "exec/recorder.h"
#include "exec/run_plan.h"
#include "exec/token_source.h"
#include "exec/transport/transport.h"

namespace sluice {

// What a worker needs besides its plan; all outlive it.
struct WorkerServices {
  const TokenSource* tokens = nullptr;
  Recorder* recorder = nullptr;       // may be null
  const FaultPlan* faults = nullptr;  // may be null
};

// Where a worker's time went in one run of the graph; nanoseconds of its compute thread.
struct WorkerTimes {
  std::int64_t total = 0;    // from its first step's beginning to the end of its last
  std::int64_t kernels = 0;  // inside the stage's calls, with what they wait for tensor-parallel peers
  std::int64_t waiting = 0;  // for messages and collectives
  // The rest is the executor's own.
  std::int64_t overhead() const { return total - kernels - waiting; }
};

// One worker of a run: a rank of the pipeline, of one data-parallel replica and one tensor-parallel share. Its arena is
// allocated once; a run of the graph allocates nothing.
class Worker {
 public:
  // Throws std::bad_alloc if there is no memory for the arena.
  Worker(const RunPlan& plan, int world_rank, Transport& transport, const WorkerServices& services);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int world_rank() const { return world_rank_; }
  int pipeline_rank() const { return pipeline_rank_; }
  const RankPlan& rank_plan() const { return rank_; }

  // Fresh weights from the seed, moments zero.
  void initialise();
  // Runs the graph once. `first_step` is the training step of its first batch, from 0; learning_rates has one for each
  // batch. Throws RunFailure for its own failure, Stopped if another worker's ended the run.
  void run(std::int64_t first_step, std::span<const double> learning_rates);

  // After `run` has thrown Stopped: throws what the collective thread threw, if it was that which ended the run.
  void rethrow_collective_error();

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

  // Of chunk `chunk`: its stage, and where its newest weights, the ones before (2BW's; else the same) and moments lie.
  const Stage& stage_of(int chunk) const;
  std::byte* newest_weights(int chunk) { return weights(chunk, steps_done_); }
  std::byte* older_weights(int chunk, int steps_before) { return weights(chunk, steps_done_ - steps_before); }
  std::byte* moments(int chunk) { return arena_ + arena_plan_.moments[static_cast<std::size_t>(chunk)]; }
  // Optimizer steps behind the newest weights; set when they are loaded.
  std::int64_t steps_done() const { return steps_done_; }
  void set_steps_done(std::int64_t steps) { steps_done_ = steps; }

 private:
  std::byte* weights(int chunk, std::int64_t version) const;
  std::byte* gradients(int chunk, int buffer) const;
  std::byte* buffer(int i) const;

  void post_receive(int receive);
  void await(const PlannedStep& step);
  template <typename Condition>
  void wait_for(VertexId vertex, VertexId waits_for, Condition&& condition);
  void run_ops(const PlannedStep& step);
  void run_steps(std::int64_t first_step, std::span<const double> learning_rates);
  SliceCall slice_call(const OpPlan& op);
  void run_send(const PlannedStep& step);
  void run_optimizer(const PlannedStep& step);
  void check_finite(const Stage& stage, const OpPlan& op, VertexId vertex, const SliceCall& call) const;
  void poison(const Stage& stage, SliceCall& call) const;
  void suffer(const FaultAction& action);
  void count_held(std::size_t step);
  void collective_loop();
  void run_collective(const PlannedCollective& collective, GroupSum& group);
  void make_groups();
  void doing(WorkerThread thread, Activity activity, VertexId vertex = 0, VertexId waits_for = 0);

  const RunPlan& plan_;
  int world_rank_;
  int pipeline_rank_;
  int data_rank_;
  int tensor_rank_;
  const RankPlan& rank_;
  const ArenaPlan& arena_plan_;
  Transport& transport_;
  WorkerServices services_;
  std::byte* arena_ = nullptr;

  std::unique_ptr<GroupSum> tensor_;  // null where the stage is not split
  std::vector<std::unique_ptr<GroupSum>> groups_;
  std::vector<GroupSum*> group_of_;  // by RankPlan::collectives
  std::vector<Message> sends_;
  std::vector<Message> receives_;
  std::vector<char> consumed_;           // by receive, in this run: its buffer was read
  std::vector<int> awaiting_;            // receives posted and not read
  std::vector<char> wakes_collectives_;  // by step: a collective begins after it
  std::vector<std::byte*> keys_values_;  // of the slices of one microbatch
  std::vector<std::byte*> keys_values_gradients_;

  VertexId running_ = 0;  // or about to
  std::int64_t run_number_ = 0;
  std::int64_t first_step_ = 0;
  std::int64_t steps_done_ = 0;
  std::int64_t version_base_ = 0;
  std::span<const double> learning_rates_;
  std::vector<double> unit_losses_;  // by unit
  std::vector<double> losses_;       // by batch
  double norm_ = 0;
  double gradient_scale_ = 1;
  std::vector<std::int64_t> starts_;
  std::vector<std::int64_t> ends_;
  WorkerTimes times_;
  std::int64_t most_held_ = 0;

  // Between the two threads. Numbers grow over all runs, so that nothing is reset.
  std::atomic<std::int64_t> progress_{0};          // run * size + vertex + 1 of the last that compute has done
  std::atomic<std::int64_t> collectives_done_{0};  // run * collectives + done
  std::atomic<std::int64_t> runs_begun_{0};
  std::atomic<bool> leaving_{false};
  std::exception_ptr collective_error_;  // read once the thread has been joined
  std::thread collective_thread_;
};

}  // namespace sluice
