#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/schedule/family.h"
#include "model/timeline/timeline.h"
#include "model/to_size.h"
#include "sim/engine/prediction.h"
#include "sim/engine/sweep.h"

namespace sluice::sim {

// A part of a rank's list: the ops of one kind and stage, of all microbatches in their order or in the reverse one.
struct Phase {
  OpKind kind = OpKind::F;
  int stage = 0;
  bool reversed = false;
  std::vector<int> slices;  // the order of the slices of every microbatch
  bool operator==(const Phase&) const = default;
};

// A schedule of phases, forwards before backwards, with fewer microbatches than the whole one: in every phase, the ops
// of `left_out` microbatches are removed after those of the first `at` ones, called its blocks.
struct PhasedSchedule {
  Schedule schedule;
  int left_out = 0;
  int at = 0;
  std::vector<std::vector<Phase>> phases;  // by rank
};

// Returns the phases of every rank; nothing if the lists have other ops, or in another order.
std::optional<std::vector<std::vector<Phase>>> phases_of(const ScheduleParts& parts);

// Builds the schedule of `family` for `params` with `kept` microbatches, at least 6. Returns nothing if it does not
// consist of phases, the same with twice as many. Throws as make_schedule does.
std::optional<PhasedSchedule> shorten_phases(const Family& family, const FamilyParams& params, int kept);

// Predicts the whole schedule from the graph of the short one, in a time that does not depend on what was left out.
//
// Proof. Let L be the last block before those left out, and R the second after them. One pass over the graph computes
// when the vertices of the short schedule run in the whole one: where a vertex of the first block after L waits for one
// of the block before, that is taken to be as much later than in L as all copies grow, each by the time between the
// last two blocks before the cut. (That time differs from rank to rank and from phase to phase.) Then it is checked
// that the times up to R continue these lines, and that each vertex waits last for the same one in L and in R. All
// needs of a vertex are vertices of the same block or of the one before, of whatever phase, so that they are met at
// times that are linear in the block as well; a linear function that is the maximum of others at both ends, and equal
// to the same one of them, is their maximum in between. So these times satisfy all equations of the whole graph, which
// has only one solution.
//
// By the same argument, what a vertex waits for, and where it is idle time, is the same in all copies: vertices on a
// lane grow alike, so that a wait is as long in each copy, and a time within it moves in one direction.
class PhasedRun {
 public:
  // `graph` is lowered from `schedule.schedule`; both outlive this.
  PhasedRun(const OpGraph& graph, const PhasedSchedule& schedule);

  // Computes the times of the graph's vertices in the whole run, with free lanes from `lane_free` on, which is set to
  // when they are free after it. Without `steps`, collectives and optimizer steps are omitted. Returns false if it is
  // not proven. Precondition: links share nothing.
  bool simulate(const Prices& prices, bool steps, LaneTimes& lane_free, Timeline& timeline) const;

  // All of a prediction but period and what follows from it, of the times computed by `simulate`.
  std::optional<Prediction> measured(const Prices& prices, const Timeline& timeline) const;

  std::int64_t whole_size() const;  // vertices

 private:
  static constexpr std::int32_t kNone = -1;
  // Where a vertex is: of a block of a phase, or outside of all.
  struct Place {
    std::int32_t phase = kNone;
    std::int32_t block = kNone;
    std::int32_t index = 0;
    bool operator==(const Place&) const = default;
  };
  struct Blocks {
    bool reversed = false;
    std::vector<std::vector<VertexId>> blocks;
  };

  bool place_vertices();
  bool blocks_alike() const;
  bool needs_repeat() const;
  bool lines_continue(const Timeline& timeline) const;
  // The vertex at the same place of another block.
  VertexId in_block(VertexId v, int block) const {
    return blocks_[to_size(place_[v].phase)].blocks[block][place_[v].index];
  }
  bool in(VertexId v, int block) const { return place_[v].phase != kNone && place_[v].block == block; }
  // Whether `need`, of `v`, is in the whole schedule in a block that is left out.
  bool crosses(VertexId v, VertexId need) const {
    return in(v, schedule_.at) && in(need, schedule_.at - 1) && place_[v].phase == place_[need].phase;
  }
  Duration growth(VertexId v, const Timeline& timeline) const {
    return timeline.start[in_block(v, schedule_.at - 1)] - timeline.start[in_block(v, schedule_.at - 2)];
  }

  Metrics metrics(const Timeline& timeline) const;
  std::optional<std::vector<IdleByCause>> idle(const Timeline& timeline) const;
  std::optional<std::vector<RootedIdle>> roots(const Timeline& timeline) const;
  bool critical_path(const Timeline& timeline, Prediction& out) const;

  const OpGraph& graph_;
  const PhasedSchedule& schedule_;
  std::vector<Place> place_;    // by vertex
  std::vector<Blocks> blocks_;  // by phase, of all ranks
  bool usable_ = false;
};

}  // namespace sluice::sim
