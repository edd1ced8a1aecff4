#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/to_size.h"
#include "traces/measured/measured_run.h"

namespace sluice::traces {

inline constexpr std::int32_t kNoOp = -1;

inline bool is_backward(MeasuredKind kind) {
  return kind == MeasuredKind::backward || kind == MeasuredKind::input_gradient;
}

// The pass of each microbatch on each stage of the pipelines of one step: index among the ops of the step.
class PassIndex {
 public:
  PassIndex(const MeasuredRun& run, std::span<const MeasuredOp> ops)
      : run_(run), pipelines_(run.replicas * run.shards) {
    for (const MeasuredOp& op : ops) {
      if (is_pass(op.kind)) microbatches_ = std::max(microbatches_, op.microbatch + 1);
    }
    rank_of_.assign(to_size(run.stages()), 0);
    for (int rank = 0; rank < run.ranks; ++rank) {
      for (int chunk = 0; chunk < run.chunks; ++chunk) rank_of_[to_size(run.stage(rank, chunk))] = rank;
    }
    at_.assign(to_size(2) * to_size(pipelines_) * to_size(run.stages()) * to_size(microbatches_), kNoOp);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const MeasuredOp& op = ops[i];
      if (op.kind != MeasuredKind::forward && !is_backward(op.kind)) continue;
      if (op.microbatch < 0) continue;
      at_[slot(op, run_.stage(run_.rank_of(op.worker), op.chunk))] = static_cast<std::int32_t>(i);
    }
  }

  // The stage whose pass precedes that of `op`; -1 if there is none.
  int stage_before(const MeasuredOp& op) const {
    const int stage = run_.stage(run_.rank_of(op.worker), op.chunk);
    if (op.kind == MeasuredKind::forward) return stage - 1;
    return stage + 1 < run_.stages() ? stage + 1 : -1;
  }
  // The pass that `op` follows on the neighbouring stage; kNoOp if there is none.
  std::int32_t before(const MeasuredOp& op) const {
    const int stage = stage_before(op);
    return stage < 0 || op.microbatch < 0 ? kNoOp : at_[slot(op, stage)];
  }
  // The ranks of the stages before and after that of `op`, in the direction of its pass; -1: none.
  int rank_before(const MeasuredOp& op) const {
    const int stage = stage_before(op);
    return stage < 0 ? -1 : rank_of_[to_size(stage)];
  }
  int rank_after(const MeasuredOp& op) const {
    const int stage = run_.stage(run_.rank_of(op.worker), op.chunk) + (op.kind == MeasuredKind::forward ? 1 : -1);
    return stage < 0 || stage >= run_.stages() ? -1 : rank_of_[to_size(stage)];
  }
  // Whether the input of `op` comes from another rank, and its output goes to one.
  bool receives(const MeasuredOp& op) const {
    return rank_before(op) >= 0 && rank_before(op) != run_.rank_of(op.worker);
  }
  bool sends(const MeasuredOp& op) const { return rank_after(op) >= 0 && rank_after(op) != run_.rank_of(op.worker); }

 private:
  std::size_t slot(const MeasuredOp& op, int stage) const {
    const int pipeline = run_.replica_of(op.worker) * run_.shards + run_.shard_of(op.worker);
    const int kind = op.kind == MeasuredKind::forward ? 0 : 1;
    return ((to_size(kind) * to_size(pipelines_) + to_size(pipeline)) * to_size(run_.stages()) + to_size(stage)) *
               to_size(microbatches_) +
           to_size(op.microbatch);
  }

  const MeasuredRun& run_;
  int pipelines_;
  int microbatches_ = 0;
  std::vector<int> rank_of_;  // by stage
  std::vector<std::int32_t> at_;
};

// The ops of all workers in one step.
inline std::span<const MeasuredOp> ops_of_step(const MeasuredRun& run, int step) {
  const std::size_t begin = run.first[to_size(step) * to_size(run.workers())];
  const std::size_t end = run.first[to_size(step + 1) * to_size(run.workers())];
  return std::span(run.ops).subspan(begin, end - begin);
}

}  // namespace sluice::traces
