// Public header.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/schedule/communication.h"
#include "model/schedule/op.h"

namespace sluice::model {

// One cut of a microbatch: its sequences, and the tokens of each slice. Without a sequence length the
// lengths are relative (1, 1, ...).
struct MicrobatchShape {
  int sequences = 1;
  std::vector<std::int64_t> slice_lengths = {1};

  int num_slices() const { return static_cast<int>(slice_lengths.size()); }
  std::int64_t tokens() const;            // of one sequence: the sum of the slices
  std::int64_t context(int slice) const;  // tokens before `slice`
  friend bool operator==(const MicrobatchShape&, const MicrobatchShape&) = default;
};

// Which weights a microbatch computes with.
enum class WeightPolicy : std::uint8_t {
  flush,            // those of its batch: the pipeline drains before the optimizer steps
  stashed,          // PipeDream: the newest when its forward starts, kept for its backward
  double_buffered,  // PipeDream-2BW: those of two batches back
};

std::string to_string(WeightPolicy policy);

// What a family or a file says; a Schedule is made of it once it has been checked.
struct ScheduleParts {
  std::string family;  // of the registry, or "custom"
  int num_ranks = 1;
  int num_stages = 1;
  int num_microbatches = 1;  // of one batch
  int num_batches = 1;
  WeightPolicy weight_policy = WeightPolicy::flush;
  // routes[k][s] is the rank of stage s for microbatches of route k. One route, except where stages are
  // replicated (DualPipe, Chimera: two).
  std::vector<std::vector<int>> routes;
  std::vector<std::uint8_t> route_of;  // by microbatch over all batches; empty: all take route 0
  std::vector<MicrobatchShape> shapes = {MicrobatchShape{}};
  std::vector<int> shape_of;            // by microbatch over all batches; empty: all have shape 0
  std::vector<std::vector<Op>> orders;  // by rank
  // By rank, in its order: where what is sent, received and sharded stands in the lists. Empty: nothing is said about
  // it, and what an op makes is sent right after it.
  std::vector<std::vector<Communication>> communication;
  // By rank and position: the cell, from 1, of the row that it was read from. Empty: it was not read from a table.
  std::vector<std::vector<int>> cells;
  std::vector<std::vector<int>> communication_cells;
};

// The most compute ops a schedule may have; larger requests are refused before anything is allocated.
inline constexpr std::int64_t kMaxOps = 60'000'000;
inline constexpr int kMaxRanks = 8192;
inline constexpr int kMaxStages = 32767;
inline constexpr int kMaxSlices = 32767;

// A placement of stages on ranks and, for each rank, the ordered list of its compute ops; nothing about time.
// Complete, and immutable but for the sizes of its shapes: every op occurs exactly once, on its rank. (Freedom from
// deadlock is found by lowering.)
class Schedule {
 public:
  // Throws ScheduleError naming the first op that is out of range, duplicate, on the wrong rank, missing, or
  // wrongly joined; with communication, the first send or receive that is, or that stands before what it sends or
  // behind what reads it, or that its partner has in another order.
  explicit Schedule(ScheduleParts parts);

  const std::string& family() const { return parts_.family; }
  int num_ranks() const { return parts_.num_ranks; }
  int num_stages() const { return parts_.num_stages; }
  int num_microbatches() const { return parts_.num_microbatches; }
  int num_batches() const { return parts_.num_batches; }
  int total_microbatches() const { return parts_.num_microbatches * parts_.num_batches; }
  WeightPolicy weight_policy() const { return parts_.weight_policy; }

  // Shares of the model that a rank holds: num_stages / num_ranks. (A replicated stage counts once.)
  int num_chunks() const { return std::max(1, parts_.num_stages / parts_.num_ranks); }
  // The stages of a rank in model order; the index in this list is the chunk.
  std::span<const int> stages_of(int rank) const { return stages_of_[rank]; }
  int chunk_of(int rank, int stage) const;

  int num_routes() const { return static_cast<int>(parts_.routes.size()); }
  int route(int microbatch) const { return parts_.route_of.empty() ? 0 : parts_.route_of[microbatch]; }
  int rank_of(int stage, int microbatch) const { return parts_.routes[route(microbatch)][stage]; }
  const std::vector<std::vector<int>>& routes() const { return parts_.routes; }

  std::span<const MicrobatchShape> shapes() const { return parts_.shapes; }
  // Other sequences and slice lengths for the same ops. Throws ScheduleError for another number of shapes or slices,
  // and as the constructor for sizes out of range.
  void resize(std::vector<MicrobatchShape> shapes);
  int shape_index(int microbatch) const { return parts_.shape_of.empty() ? 0 : parts_.shape_of[microbatch]; }
  const MicrobatchShape& shape(int microbatch) const { return parts_.shapes[shape_index(microbatch)]; }
  int num_slices(int microbatch) const { return shape(microbatch).num_slices(); }
  int max_slices() const { return max_slices_; }
  bool sliced() const { return max_slices_ > 1; }

  // Slices are numbered over all microbatches: unit = first_unit(microbatch) + slice.
  std::int64_t first_unit(int microbatch) const {
    return first_unit_.empty() ? static_cast<std::int64_t>(microbatch) * max_slices_ : first_unit_[microbatch];
  }
  std::int64_t num_units() const { return num_units_; }

  std::span<const Op> ops(int rank) const { return parts_.orders[rank]; }
  std::int64_t num_ops() const { return num_ops_; }
  bool split_backward() const { return split_backward_; }  // any W
  bool has_joint_blocks() const { return has_joint_blocks_; }

  bool has_communication() const { return !parts_.communication.empty(); }
  std::span<const Communication> communication(int rank) const { return parts_.communication[rank]; }

  // Where something stands, for errors: "rank 1, position 3", or of a table "row 2, cell 5".
  std::string place(int rank) const;
  std::string place(int rank, std::size_t position) const;
  std::string communication_place(int rank, std::size_t index) const;
  bool read_from_table() const { return !parts_.cells.empty(); }

  const ScheduleParts& parts() const { return parts_; }

 private:
  void check_frame() const;
  void check_shapes() const;
  void check_ops();

  ScheduleParts parts_;
  std::vector<std::vector<int>> stages_of_;
  std::vector<std::int64_t> first_unit_;
  std::int64_t num_units_ = 0;
  std::int64_t num_ops_ = 0;
  int max_slices_ = 1;
  bool split_backward_ = false;
  bool has_joint_blocks_ = false;
};

// Calls `on_op` and `on_communication` for what stands in a rank's list, in its order.
template <typename OnOp, typename OnCommunication>
void for_each_step(const Schedule& schedule, int rank, OnOp&& on_op, OnCommunication&& on_communication) {
  const auto ops = schedule.ops(rank);
  const auto moved = schedule.has_communication() ? schedule.communication(rank) : std::span<const Communication>();
  std::size_t next = 0;
  for (std::size_t i = 0; i <= ops.size(); ++i) {
    for (; next < moved.size() && moved[next].before <= i; ++next) on_communication(moved[next]);
    if (i < ops.size()) on_op(ops[i]);
  }
}

// Version of the weights (number of optimizer steps behind it) that `microbatch` computes with on `rank`.
// 2BW, with m counted from 1 over batches of M: max(floor((m-1)/M) - 1, 0) (Narayanan et al. 2021, 2BW, 3.1).
// PipeDream on rank r of p: the microbatches whose backward precedes its forward, max(0, n - (p - r) + 1).
int weight_version(const Schedule& schedule, int microbatch, int rank);

// How many versions of a stage's weights `rank` holds at once: those that microbatches in flight computed with, and the
// newest. PipeDream: p - r, once there are 2(p - r) - 2 microbatches.
int num_weight_versions(const Schedule& schedule, int rank);

}  // namespace sluice::model
