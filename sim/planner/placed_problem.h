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

// What the ops on one slice of one stage take, recomputation included, and how long what F and I or B hand on occupies
// its link.
struct SliceOpTimes {
  Duration forward{};
  Duration input_gradient{};
  Duration weight_gradient{};
  Duration backward{};  // input and weight gradient as one op
  Duration send_forward{};
  Duration send_backward{};
};

// Identical microbatches to be ordered on ranks whose stages are given: everything that the order decides about, and
// nothing else. Vectors by slice have stage * num_slices + slice for an index. What a rank holds is counted as the
// memory plan does (model/timeline/memory.h), but for receive buffers, which depend on the times.
struct PlacedProblem {
  int num_ranks = 1;
  std::vector<int> rank_of;  // by stage
  int num_microbatches = 1;
  MicrobatchShape shape;
  std::vector<SliceOpTimes> times;       // by slice
  std::vector<SliceBytes> bytes;       // by slice; in any unit
  std::vector<std::int64_t> limit;     // by rank, in that unit, of what the slices hold; kNoLimit without
  std::vector<Duration> forward_hop;   // by stage: latency of what its F hands on; 0 within a rank
  std::vector<Duration> backward_hop;  // and of what its I or B hands on
  std::vector<Duration> after;         // by rank: what at least follows the end of its last op (collectives, steps)
  bool blocking = false;               // a rank's next op waits until what its last one sent has arrived
  bool may_split = true;               // I and W have times
  bool may_fuse = true;                // B has
  bool may_join = false;               // joint blocks of an F and a B may occur (of families: the search forms none)
  double joint_share = 1;              // the least that a joint block takes of what its F and B take apart

  int num_stages() const { return static_cast<int>(rank_of.size()); }
  int num_slices() const { return shape.num_slices(); }
  std::size_t slice_index(int stage, int slice) const {
    return static_cast<std::size_t>(stage) * shape.slice_lengths.size() + static_cast<std::size_t>(slice);
  }
};

// Throws InputError for sizes that do not agree, negative times or bytes, or sums of them past 62 bits; DoesNotFit
// naming the first rank whose limit is below what one microbatch alone takes.
void check(const PlacedProblem& problem);

// The least limit of each rank under which there is a schedule: all of a microbatch's slices and chunks are held at
// once before its first gradient, and one microbatch after the other can then always run.
std::vector<std::int64_t> least_limits(const PlacedProblem& problem);

// Ops by rank in the order in which they run; an op's number is OpTable's.
using Orders = std::vector<std::vector<std::int32_t>>;

// The ops of a problem by number: kind * cells + stage * units + unit, where a unit is microbatch * slices + slice.
// Times in nanoseconds.
struct OpTable {
  struct Row {
    std::int64_t duration = 0;
    std::int64_t hop = 0;     // of what it hands on
    std::int64_t send = 0;    // on `lane`
    std::int32_t need = 0;    // slot of what it waits for from another stage
    std::int32_t makes = 0;   // slot of what it hands on
    std::int32_t lane = -1;   // link, if it sends
    std::int32_t reader = 0;  // rank of who waits for what it makes
    std::int64_t takes = 0;   // bytes at its start
    std::int64_t keeps = 0;   // bytes from its end on: more, or with a minus sign fewer
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
  // Ops of one kind (I and B count as one), stage and slice: their microbatches stand in ascending order.
  int group(std::int32_t op) const {
    const int k = op / cells;
    return ((k == 0 ? 0 : k == 3 ? 2 : 1) * stages + stage(op)) * slices + slice(op);
  }
  // Whether `before` must stand before `after` on their common rank.
  bool ordered(std::int32_t before, std::int32_t after) const;

  int ranks, stages, slices, microbatches, units, cells;
  std::int32_t num_slots = 0;  // slot 0 is there from the start, slot 1 is nobody's
  int num_lanes = 0;
  std::vector<int> rank_of;  // by stage
  std::vector<Row> rows;     // by op
};

// Slots of OpTable.
inline constexpr std::int32_t kAlwaysThere = 0;
inline constexpr std::int32_t kForNobody = 1;

// A schedule of these orders, of no family.
Schedule schedule_of(const PlacedProblem& problem, const Orders& orders);

// The same kinds, stages and slices in the same places, with microbatches so that each group is in ascending order.
Orders renamed(const OpTable& table, Orders orders);

// The orders of a schedule of the same placement, with microbatches renamed so that each group is in ascending order:
// they are alike, so no time and no memory gets worse. Joint blocks become two ops.
Orders orders_of(const OpTable& table, const Schedule& schedule);

// One microbatch after the other.
Orders sequential_orders(const PlacedProblem& problem);

// Prices of a graph of the problem, collectives and steps taken as nothing. Transfers are priced as the problem says.
Prices price(const OpGraph& graph, const PlacedProblem& problem);

// The problem's bytes, to lower a schedule with.
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

// Whether every rank keeps its limit at every moment, by the orders alone.
bool keeps_limits(const PlacedProblem& problem, const OpTable& table, const Orders& orders);

// What the simulator makes of `schedule`, which may have joint blocks: an F and a B take their sum.
Duration simulated_makespan(const PlacedProblem& problem, const Schedule& schedule);

}  // namespace sluice::sim
