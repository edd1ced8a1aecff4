#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/schedule/family.h"
#include "model/timeline/timeline.h"

namespace sluice::sim {

// A schedule with repetitions taken out of its steady state. Each rank's list is a beginning, a block of ops that
// repeats with later microbatches, and an end; the short schedule has fewer of these blocks and is otherwise the same.
// Simulated instead of the long one it tells the long one's time to the nanosecond, if `SteadyState::extension` says
// so.
struct ShortSchedule {
  Schedule schedule;
  int unit = 1;     // microbatches of a block
  int removed = 0;  // blocks, on every rank; 0: nothing repeats, and this is the schedule itself
  struct Cut {
    std::int64_t block = 0;  // ops of a block on this rank
    std::int64_t begin = 0;  // position from which the list repeats
    std::int64_t at = 0;     // position at which blocks were taken out
  };
  std::vector<Cut> cuts;  // by rank
};

// The schedule of `family` for `params`, with as many blocks taken out as leave at least `microbatches` microbatches.
// Compared op for op with the lists of the whole schedule, which are made but not checked or lowered. Precondition: the
// family flushes. Throws what make_schedule does.
ShortSchedule shorten(const Family& family, const FamilyParams& params, int microbatches);

// Whether a short schedule's timeline proves what the long one's is.
//
// Proof. Let q be the position of the cut on each rank and x an op before it or behind it. What was taken out of the
// graph are n copies of the last blocks before q. If no vertex before q waits for one behind it, these vertices have
// the same times in both. If over the last D blocks before q, D being how far back anything in the last c blocks or
// behind q waits, every vertex starts L later than the one c blocks before it, then by induction along the long graph,
// whose edges repeat as its lists do, so does every vertex of the n copies, c blocks after the other, and what is
// behind q starts n / c times L later than in the short graph. A need on the same compute lane needs no D: the lane's
// order implies it. The same shift holds for what a rank holds in memory, so its peak is that of the short schedule.
//
// Where links share something, transfers on different ranks meet in time, whatever the graph says. Let T be the first
// start of anything of the copies or behind q. If all that starts before q from T - L less the longest transfer on
// starts and ends L later than c blocks before it, then at every moment of the long run what moves is, with what is
// left of it, what moves in the short one so many L earlier; rates follow from that alone. (In a queue ties break by
// the order of lowering, which need not repeat: not for those.)
class SteadyState {
 public:
  // `graph` is lowered from `schedule.schedule`, and outlives this.
  SteadyState(const OpGraph& graph, const ShortSchedule& schedule);

  struct Extension {
    Duration time{};             // by which everything behind the cut is later in the long schedule
    std::vector<Duration> busy;  // by rank: compute time of what was taken out
  };
  // Nothing if the timeline has not (yet) become periodic, or transfers queue up.
  std::optional<Extension> extension(const Prices& prices, const Timeline& timeline) const;

 private:
  // Vertices of one rank before the cut that repeat, in the order of its list; equally many a block.
  struct Repeats {
    std::vector<VertexId> vertices;
    std::int64_t per_block = 0;
  };
  void find_positions();
  bool close_cuts();
  bool repeat_alike();
  std::int64_t blocks_back(VertexId v) const;
  std::optional<Duration> growth_of(const Timeline& timeline, std::int64_t cycle, std::int64_t depth) const;
  bool covers_what_moves(const Timeline& timeline, std::int64_t cycle, Duration growth) const;

  const OpGraph& graph_;
  int removed_;
  int unit_;
  std::vector<ShortSchedule::Cut> cuts_;  // by rank
  std::vector<std::int64_t> position_;    // by vertex
  std::vector<Repeats> repeats_;          // by rank
  std::vector<std::int64_t>
      reach_;  // by block counted from the cut, 0 being behind it: how far back it waits, in blocks
  bool usable_ = false;
};

}  // namespace sluice::sim
