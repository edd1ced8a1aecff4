#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/units.h"

namespace sluice::traces {

// What a measured op did. The names in reports are those of ByteDance's StragglerAnalysis.
enum class MeasuredKind : std::uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  forward_send,
  forward_receive,
  backward_send,
  backward_receive,
  parameter_gather,
  gradient_scatter,
  layernorm_reduce,
  embedding_reduce,
  separate_reduce,
  garbage_collection,
  clip,
  optimizer,
};
inline constexpr int kNumMeasuredKinds = 16;
inline constexpr std::array<std::string_view, kNumMeasuredKinds> kMeasuredKindNames = {"forward-compute",
                                                                                       "backward-compute",
                                                                                       "backward-input-compute",
                                                                                       "backward-weight-compute",
                                                                                       "forward-send",
                                                                                       "forward-recv",
                                                                                       "backward-send",
                                                                                       "backward-recv",
                                                                                       "params-all-gather",
                                                                                       "grads-reduce-scatter",
                                                                                       "layernorm-grads-all-reduce",
                                                                                       "embedding-grads-all-reduce",
                                                                                       "separate-grads-all-reduce",
                                                                                       "gc",
                                                                                       "optimizer-clip-main-grad",
                                                                                       "optimizer"};
std::optional<MeasuredKind> measured_kind(std::string_view name);

// F, B, I or W.
constexpr bool is_pass(MeasuredKind kind) { return kind <= MeasuredKind::weight_gradient; }
constexpr bool is_pipeline_transfer(MeasuredKind kind) {
  return kind >= MeasuredKind::forward_send && kind <= MeasuredKind::backward_receive;
}
// Communication, whose duration depends on when the others of its group start. Clipping contains an all-reduce.
constexpr bool is_communication(MeasuredKind kind) {
  return is_pipeline_transfer(kind) ||
         (kind >= MeasuredKind::parameter_gather && kind <= MeasuredKind::separate_reduce) ||
         kind == MeasuredKind::clip;
}

// One op of one worker in one step. 40 bytes, so that long timelines fit into memory.
struct MeasuredOp {
  Duration start{};  // from the first start of the step on any worker
  Duration end{};
  std::int32_t step = 0;         // index into MeasuredRun::steps
  std::int32_t worker = 0;       // see MeasuredRun::worker
  std::int32_t microbatch = -1;  // -1: none
  std::int32_t number = -1;      // among the ops of its kind on its worker in its step, by start
  std::int16_t chunk = 0;        // index of the stage among those of its rank
  MeasuredKind kind = MeasuredKind::forward;
};

// Steps of a training run as they were measured on all recorded workers: data-parallel replicas of a pipeline of
// `ranks` ranks, of each of which `shards` tensor-parallel ranks were recorded.
struct MeasuredRun {
  std::string format;  // "ByteDance timeline", for the user
  int replicas = 0;
  int ranks = 0;
  int shards = 1;
  int chunks = 1;
  int microbatches = 0;              // per step and replica
  bool has_transfers = false;        // recorded ones
  bool estimated_transfers = false;  // with_estimated_transfers
  std::vector<std::int64_t> steps;   // their numbers in the files, ascending
  std::vector<MeasuredOp> ops;       // by step, worker, start
  std::vector<std::size_t> first;    // by step and worker: the first op; one more at the end
  std::vector<int> stage_of_chunk;   // by rank and chunk; empty: chunk * ranks + rank, as in Megatron-LM
  std::vector<double> memory_bytes;  // peak by worker over the steps; empty if unknown
  std::vector<std::string> notes;    // what is missing, for the user

  int workers() const { return replicas * ranks * shards; }
  int worker(int replica, int rank, int shard = 0) const { return (replica * ranks + rank) * shards + shard; }
  int replica_of(int worker) const { return worker / (ranks * shards); }
  int rank_of(int worker) const { return worker / shards % ranks; }
  int shard_of(int worker) const { return worker % shards; }
  int stages() const { return ranks * chunks; }
  int stage(int rank, int chunk) const {
    return stage_of_chunk.empty() ? chunk * ranks + rank
                                  : stage_of_chunk[static_cast<std::size_t>(rank) * static_cast<std::size_t>(chunks) +
                                                   static_cast<std::size_t>(chunk)];
  }
  std::span<const MeasuredOp> of(int step, int worker) const;
  // "replica 1 rank 3", without the replica if there is only one.
  std::string name_of(int worker) const;
};

// An op as a file names it, before workers and steps are numbered.
struct RawMeasuredOp {
  std::int64_t step = 0;
  int replica = 0;
  int rank = 0;
  int shard = 0;
  MeasuredOp op;  // start and end on the clock of the file; step and worker are set by measured_run
};

// Builds a run: numbers steps and workers, sorts and numbers ops, and sets times relative to their step. Steps and
// replicas that are incomplete (a worker has no ops, fewer forwards or backwards than the others, or passes that
// overlap by more than kClockResolution) are left out, with a note each. Overlaps above 50 us and negative durations
// are repaired and counted in a note: a pass ends where the next one begins, and a negative duration is 0. Throws
// InputError "source: ..." if nothing complete is left, or if more than 2^20 workers or 2^31 ops are given.
MeasuredRun measured_run(std::deque<RawMeasuredOp> ops, std::string format, const std::string& source);

// Leaves out the first step, with a note, if it took over 1.5 times the median of the others: compilation and the setup
// of communication.
void drop_warm_up(MeasuredRun& run);

// Sorts, indexes and numbers the ops of a run, after ops were added.
void arrange_ops(MeasuredRun& run);

}  // namespace sluice::traces
