#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "exec/plan/rank_plan.h"
#include "exec/plan/stage_footprint.h"
#include "kernels/device_kernels.h"
#include "kernels/stage.h"
#include "model/graph/op_graph.h"
#include "model/schedule/schedule.h"
#include "model/weave/weave.h"
#include "model/workload/training.h"
#include "model/workload/transformer.h"

namespace sluice::exec {

// Numbers of parallel ranks of a run. World ranks count tensor ranks innermost, then data, then pipeline, as in
// Megatron-LM. With experts, each `expert` consecutive ranks of a stage form an expert group, over which the experts
// are distributed.
struct RunLayout {
  int pipeline = 1;
  int data = 1;
  int tensor = 1;
  int expert = 1;

  int size() const { return pipeline * data * tensor; }
  int world_rank(int pipeline_rank, int data_rank, int tensor_rank) const {
    return (pipeline_rank * data + data_rank) * tensor + tensor_rank;
  }
  int tensor_rank(int world_rank) const { return world_rank % tensor; }
  int data_rank(int world_rank) const { return world_rank / tensor % data; }
  int pipeline_rank(int world_rank) const { return world_rank / tensor / data; }
  // Among the data and tensor ranks of a pipeline rank.
  int group_rank(int world_rank) const { return world_rank % (data * tensor); }
};

// A model, and how it is trained and partitioned.
struct RunSpec {
  Transformer model;
  Precision precision = Precision::float32;
  const DeviceKernels* kernels = nullptr;  // kernels of a run on devices, in 16-bit precision; null: on the CPU
  int data_parallel = 1;
  int tensor_parallel = 1;
  int expert_parallel = 1;        // divides data_parallel x tensor_parallel
  std::vector<int> stage_layers;  // layers per stage, or empty; see split_layers
  int first_stage_layers = 0;
  int last_stage_layers = 0;
  bool recompute = false;            // full recomputation of all layers
  bool overlap_grad_reduce = false;  // start a stage's gradient reduction as soon as its gradients are complete
  AttentionChoice attention = AttentionChoice::gemm;  // on devices
  // With tensor parallelism on devices: each rank sends its shard of the tensor that all of them hold, and the
  // receivers all-gather it (Narayanan et al. 2021, 4.1).
  bool scatter_gather = true;
  // The order in which the parts of joint blocks interleave with expert parallelism on the CPU and without
  // recomputation; without parts, and elsewhere, the two ops of a block run one after the other.
  Weave weave = find_weave("dualpipe");
  double clip_gradients = 0;  // maximum norm of the gradients; 0: no clipping and no norm
  OptimizerStep optimizer;    // number and gradient_scale are set by the run
  std::uint64_t seed = 1;     // of the initial weights
};

// Offsets in bytes of persistent data in the arena of a worker.
struct ArenaPlan {
  std::vector<std::vector<std::int64_t>> weights;    // by chunk and version buffer
  std::vector<std::vector<std::int64_t>> gradients;  // by chunk and gradient buffer
  std::vector<std::int64_t> optimizer_states;        // by chunk
  std::int64_t scratch = 0;
  std::int64_t tokens = 0;  // of one slice; on a device of all units, contiguous
  std::int64_t targets = 0;
  // Distance from scratch, tokens and targets of the first op of a woven block to those of the second, on devices of
  // scratch alone; 0: none is woven.
  std::int64_t second_op = 0;
  std::int64_t tables = 0;            // of Stage::fill_tables
  std::vector<std::int64_t> buffers;  // by boundary buffer
  std::int64_t blocks = 0;            // of RankPlan::blocks

  std::int64_t standing_bytes = 0;  // of everything but blocks and the buffers of receives
  std::int64_t total_bytes = 0;
};

// A schedule and a model prepared for running: the graph, and for each rank its steps and its memory layout. All
// workers of a run hold the same plan. Not movable: its parts refer to each other.
class RunPlan {
 public:
  // Throws InputError for what the kernels or the schedule do not support, ScheduleError for a schedule that deadlocks.
  // Slice lengths of the schedule are in tokens. float16 always computes the global norm, which detects overflows.
  RunPlan(RunSpec spec, Schedule schedule);
  // The same for replicas with microbatches of their own. Precondition: one schedule per replica, which differ in
  // shapes alone, and have as many sequences.
  RunPlan(const RunSpec& spec, const std::vector<Schedule>& replicas);
  RunPlan(const RunPlan&) = delete;
  RunPlan& operator=(const RunPlan&) = delete;

  // The plan of a replica: this one, the first one's, unless they have microbatches of their own. Their graphs differ
  // in bytes alone.
  const RunPlan& of_replica(int data_rank) const {
    return data_rank == 0 || others_.empty() ? *this : *others_[data_rank - 1];
  }
  const RunSpec& spec() const { return spec_; }
  const Schedule& schedule() const { return schedule_; }
  const RunLayout& layout() const { return layout_; }
  const std::vector<StageContents>& contents() const { return contents_; }
  const Footprint& footprint() const { return *footprint_; }
  const OpGraph& graph() const { return *graph_; }
  const RankPlan& rank(int pipeline_rank) const { return ranks_[pipeline_rank]; }
  const ArenaPlan& arena(int pipeline_rank) const { return arenas_[pipeline_rank]; }
  // `group_rank`: see RunLayout.
  const Stage& stage(int group_rank, int stage) const { return *stages_[group_rank % std::ssize(stages_)][stage]; }
  bool has_experts() const { return spec_.model.has_experts(); }
  bool has_woven_blocks() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const RankPlan& rank) { return rank.has_woven_blocks(); });
  }
  bool on_devices() const { return spec_.kernels != nullptr; }
  // Bytes of an element of weights and boundary tensors, and of gradients and optimizer states.
  int element_bytes() const { return on_devices() ? 2 : gradient_element_bytes(); }
  int gradient_element_bytes() const { return spec_.precision == Precision::float64 ? 8 : 4; }
  // On devices a checkpoint holds the master weights, so that it can be resumed on CPU and device.
  Precision checkpoint_precision() const { return on_devices() ? Precision::float32 : spec_.precision; }

  // Batches (optimizer steps) of one run of the graph, and sequences and tokens of one batch over all replicas; the
  // latter without those of forward-only microbatches, unless all are.
  int batches() const { return schedule_.num_batches(); }
  int sequences_per_batch() const { return sequences_per_batch_; }
  std::int64_t sequence_length() const { return sequence_length_; }  // of the longest microbatch
  double tokens_per_batch() const;
  // Whether losses include a microbatch: if it has a backward, or if none has.
  bool counts(const MicrobatchShape& shape) const { return !shape.forward_only || schedule_.forward_only(); }
  // Tokens over which the loss of the optimizer step of a microbatch is averaged.
  double tokens_per_step(int microbatch) const;
  // Optimizer steps of one run of the graph: one per batch, or with weight stashing one per microbatch.
  int steps_per_run() const;
  // Index in its batch of the first sequence of a microbatch, for one replica: that of all microbatches follow each
  // other, or of replicas with microbatches of their own those of one number, as the loader distributes them.
  int first_sequence(int microbatch, int data_rank) const;

 private:
  void make_stages();
  bool is_woven(const PlannedStep& step) const;
  ArenaPlan plan_arena(const RankPlan& rank) const;

  RunSpec spec_;
  Schedule schedule_;
  RunLayout layout_;
  std::vector<StageContents> contents_;
  // By tensor rank, or with experts by group rank; and by stage.
  std::vector<std::vector<std::unique_ptr<Stage>>> stages_;
  std::unique_ptr<StageFootprint> footprint_;
  std::unique_ptr<OpGraph> graph_;
  std::vector<RankPlan> ranks_;
  std::vector<ArenaPlan> arenas_;
  std::vector<int> first_sequences_;  // by microbatch of a batch, of one replica
  int sequences_per_replica_ = 0;
  int sequences_per_batch_ = 0;
  std::int64_t sequence_length_ = 0;
  std::int64_t positions_ = 0;                    // of the longest document
  std::vector<std::int64_t> tokens_of_;           // by microbatch of a batch, over all replicas
  bool own_microbatches_ = false;                 // of each replica
  std::vector<std::unique_ptr<RunPlan>> others_;  // of the second replica and those after it
};

}  // namespace sluice::exec
