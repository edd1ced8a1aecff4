#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "model/cost/price.h"
#include "model/errors.h"
#include "model/graph/footprint.h"
#include "model/graph/op_graph.h"
#include "model/schedule/schedule.h"
#include "model/units.h"

namespace sluice::sim {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max() / 4;

// Times of the ops on one slice of one stage, including recomputation, and the times for which the results of F and of
// I or B occupy their link.
struct SliceOpTimes {
  Duration forward{};
  Duration input_gradient{};
  Duration weight_gradient{};
  Duration backward{};  // input and weight gradient as one op
  Duration send_forward{};
  Duration send_backward{};
};

// The problem of ordering identical microbatches on ranks with given stages. Vectors by slice are indexed by
// stage * num_slices + slice. Memory is counted as in model/timeline/memory.h but without receive buffers, which depend
// on the times.
struct PlacedProblem {
  int num_ranks = 1;
  std::vector<int> rank_of;  // by stage
  int num_microbatches = 1;
  MicrobatchShape shape;
  std::vector<SliceOpTimes> times;     // by slice
  std::vector<SliceBytes> bytes;       // by slice; in any unit
  std::vector<std::int64_t> limit;     // by rank, in that unit, for all slices; kNoLimit: none
  std::vector<Duration> forward_hop;   // by stage: latency of the transfer after its F; 0 within a rank
  std::vector<Duration> backward_hop;  // likewise after its I or B
  std::vector<Duration> after;         // by rank: minimal time after its last op (collectives, optimizer steps)
  bool blocking = false;               // a rank's next op waits until the transfer of its last one has arrived
  bool may_split = true;               // I and W have times
  bool may_fuse = true;                // B has
  bool may_join = false;               // families may have joint blocks of an F and a B; the search builds none
  double joint_share = 1;              // minimal time of a joint block as a fraction of that of its F and B

  int num_stages() const { return static_cast<int>(rank_of.size()); }
  int num_slices() const { return shape.num_slices(); }
  std::size_t slice_index(int stage, int slice) const {
    return static_cast<std::size_t>(stage) * shape.slice_lengths.size() + static_cast<std::size_t>(slice);
  }
};

// Throws InputError for inconsistent sizes, negative times or bytes, or sums of them past 62 bits; DoesNotFit naming
// the first rank whose limit is below the memory of one microbatch.
void check(const PlacedProblem& problem);

// The minimal limit of each rank for which a schedule exists: a rank holds all slices and chunks of a microbatch before
// its first gradient, and with that much memory microbatches can run one by one.
std::vector<std::int64_t> least_limits(const PlacedProblem& problem);

// By rank, the ops in the order in which they run, numbered as in OpTable.
using Orders = std::vector<std::vector<std::int32_t>>;

// The ops of a problem. The number of an op is kind * cells + stage * units + unit, its unit microbatch * slices +
// slice. Times are in nanoseconds.
struct OpTable {
  struct Row {
    std::int64_t duration = 0;
    std::int64_t hop = 0;     // latency of its result
    std::int64_t send = 0;    // time of its result on `lane`
    std::int32_t need = 0;    // slot of its input from another stage
    std::int32_t makes = 0;   // slot of its result
    std::int32_t lane = -1;   // link, if it sends
    std::int32_t reader = 0;  // rank that waits for its result
    std::int64_t takes = 0;   // bytes allocated at its start
    std::int64_t keeps = 0;   // bytes allocated from its end on; negative if it releases more
  };

  explicit OpTable(const PlacedProblem& problem);

  std::int32_t id(OpKind kind, int stage, int microbatch, int slice) const {
    return static_cast<std::int32_t>(kind) * cells + stage * units + microbatch * slices + slice;
  }
  OpKind kind(std::int32_t op) const { return static_cast<OpKind>(op / cells); }
  int stage(std::int32_t op) const { return op % cells / units; }
  int unit(std::int32_t op) const { return op % units; }
  int microbatch(std::int32_t op) const { return op % units / slices; }
  int slice(std::int32_t op) const { return op % slices; }
  bool gradient(std::int32_t op) const { return kind(op) == OpKind::I || kind(op) == OpKind::B; }
  // Number of the group of ops of one kind (I and B count as one), stage and slice, whose microbatches are in ascending
  // order.
  int group(std::int32_t op) const {
    const int k = op / cells;
    return ((k == 0 ? 0 : k == 3 ? 2 : 1) * stages + stage(op)) * slices + slice(op);
  }
  // Whether `before` must precede `after` on their common rank.
  bool ordered(std::int32_t before, std::int32_t after) const;

  int ranks, stages, slices, microbatches, units, cells;
  std::int32_t num_slots = 0;  // slot 0 is always available, slot 1 has no reader
  int num_lanes = 0;
  std::vector<int> rank_of;  // by stage
  std::vector<Row> rows;     // by op
};

// Slots of OpTable.
inline constexpr std::int32_t kAvailable = 0;
inline constexpr std::int32_t kNoReader = 1;

// Builds a custom schedule with these orders.
Schedule schedule_of(const PlacedProblem& problem, const Orders& orders);

// Renumbers microbatches so that each group is in ascending order; kinds, stages and slices keep their positions.
Orders renamed(const OpTable& table, Orders orders);

// The orders of a schedule with the same placement, renumbered by `renamed`. As microbatches are identical, neither
// times nor memory get worse. Joint blocks become two ops.
Orders orders_of(const OpTable& table, const Schedule& schedule);

// Orders that run one microbatch after the other.
Orders sequential_orders(const PlacedProblem& problem);

// Prices of a graph of the problem. Collectives and optimizer steps take no time.
Prices price(const OpGraph& graph, const PlacedProblem& problem);

// The problem's bytes as a footprint for lowering.
class PlacedFootprint : public Footprint {
 public:
  explicit PlacedFootprint(const PlacedProblem& problem) : problem_(problem) {}
  StageBytes stage(int /*stage*/) const override { return {}; }
  SliceBytes slice(int stage, const MicrobatchShape& /*shape*/, int slice) const override {
    return problem_.bytes[problem_.slice_index(stage, slice)];
  }

 private:
  const PlacedProblem& problem_;
};

// Whether no rank ever exceeds its limit, which depends only on the orders.
bool keeps_limits(const PlacedProblem& problem, const OpTable& table, const Orders& orders);

// Simulated makespan of `schedule`. A joint block takes the sum of its F and B.
Duration simulated_makespan(const PlacedProblem& problem, const Schedule& schedule);

}  // namespace sluice::sim
