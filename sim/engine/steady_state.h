#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/cost/price.h"
#include "model/graph/op_graph.h"
#include "model/schedule/family.h"
#include "model/timeline/causes.h"
#include "model/timeline/timeline.h"

namespace sluice::sim {

// A schedule without some repetitions of its steady state. Each rank's list has a beginning, a block of ops that
// repeats with later microbatches, and an end; the short schedule has fewer of these blocks and is otherwise the same.
// If `SteadyState::extension` returns a value, the time of the long schedule follows exactly from that of the short
// one.
struct ShortSchedule {
  Schedule schedule;
  int unit = 1;     // microbatches of a block, of all routes
  int removed = 0;  // blocks, on every rank; 0: this is the whole schedule
  struct Cut {
    std::int64_t block = 0;  // ops of a block on this rank
    std::int64_t begin = 0;  // position from which the list repeats
    std::int64_t at = 0;     // position at which blocks were removed
  };
  std::vector<Cut> cuts;  // by rank
  FamilyParams params;    // of the short schedule; not set for the whole one
};

// Parameters with fewer microbatches, with which a family makes the same schedule without some of its repetitions, if
// it has any: the remainders of their number by ranks and groups, and the group, are those of the whole schedule.
struct FewerMicrobatches {
  FamilyParams params;    // with `least` microbatches or more; with all where `step` is too large for fewer
  std::int64_t step = 1;  // of the number of microbatches
};
FewerMicrobatches fewer_microbatches(const Family& family, const FamilyParams& params, std::int64_t least);

// Numbers the microbatches of a schedule with several routes so that those of a block, which has microbatches of every
// route, follow those of the block before: the i-th of a route has the number i routes + route. Empty for one route,
// where their number is their index.
std::vector<int> numbers_by_route(std::span<const std::uint8_t> route_of);

// Returns a number of microbatches that is mostly enough for warm-up, drain, and a steady state.
int kept_microbatches(const FamilyParams& params);

// Builds the schedule of `family` for `params` with as many blocks removed, a multiple of `multiple`, as leave at least
// `microbatches` microbatches, or a multiple of these where fewer do not repeat. It is compared op by op with the lists
// of a schedule that is at least twice as long, which are built but not checked or lowered; the remainders of their
// numbers of microbatches by ranks and groups are equal, so that the schedule of `params` only has more of the same
// blocks. Takes a time that does not depend on the number of microbatches of `params`. Returns nothing if the lists do
// not repeat, or less than half of them would be removed. Precondition: the family flushes. Throws as make_schedule
// does.
std::optional<ShortSchedule> shorten(const Family& family, const FamilyParams& params, int microbatches,
                                     int multiple = 1);

// Returns the short schedule with `blocks` of the removed ones, 1 to that number; nothing if that of the family
// differs.
std::optional<ShortSchedule> with_blocks(const Family& family, const ShortSchedule& brief, int blocks);

// Decides whether the timeline of a short schedule determines that of the long one.
//
// Proof. Let q be the position of the cut on each rank. The graph of the long schedule additionally contains n copies
// of the last block before q. If no vertex before q depends on one after q, the vertices before q have the same times
// in both graphs. Let D be the number of blocks before q that the vertices of the last c blocks, and those after q,
// depend on. If every vertex of the last D blocks starts L later than its counterpart c blocks earlier, then, by
// induction along the long graph, whose edges repeat as its lists do, so does every vertex of the n copies, and the
// vertices after q start (n / c) L later than in the short graph. A dependency on the same compute lane does not count
// for D, as the order of the lane implies it. Memory shifts likewise, so the peak of a rank is that of the short
// schedule.
//
// Where links share resources, transfers of different ranks also interact in time. Let T be the first start of a vertex
// of the copies or after q. If every vertex before q that starts after T - L minus the longest transfer starts and ends
// L later than its counterpart c blocks earlier, then at any time of the long run the transfers in flight and their
// remaining bytes are those of the short run a multiple of L earlier, and these determine the rates. (Queues are
// excluded: ties in a queue break by the order of lowering, which need not repeat.)
class SteadyState {
 public:
  // `graph` is lowered from `schedule.schedule`, and outlives this.
  SteadyState(const OpGraph& graph, const ShortSchedule& schedule);

  struct Extension {
    Duration time{};             // by which everything after the cut is later in the long schedule
    std::vector<Duration> busy;  // by rank: compute time of the removed blocks
    std::int64_t cycle = 1;      // blocks after which times repeat, a divisor of the number of removed ones
  };
  // Returns nothing if the timeline does not become periodic, or if links have queues. Where links share resources,
  // what follows the cuts may slow transfers before them: then cuts one and two blocks earlier are tried.
  std::optional<Extension> extension(const Prices& prices, const Timeline& timeline);
  // The same without a proof, of a timeline that is not periodic only since some ranks drift against others by less
  // than 1e-6 of a repetition: everything grows as the slowest of them. What it leaves out is what happens once the
  // drift has used up the slack between ranks.
  std::optional<Extension> estimate(const Prices& prices, const Timeline& timeline) const;

  // What else repeats, where links share nothing and `of` is the extension of the timeline.

  // Whether the memory of a rank over time does. Let T be the first start of a vertex of the copies or after the cuts,
  // and L the growth of a cycle. If every vertex before the cuts that ends after T - L starts and ends L later than its
  // counterpart, then so does, in the long run, every one that ends between T - L and the first start after the last
  // copy: in each cycle of that time a rank allocates and frees the same in the same order.
  bool memory_repeats(const Timeline& timeline, const Extension& of) const;
  // The part of a critical path, from index `begin` to `end`, that the path of the long run has again after `end`, each
  // time `blocks` later, which is a multiple of the cycle. It ends at a vertex before the cuts, and begins after the
  // same vertex of an earlier block; everything that its vertices, and those after it before the cuts, wait for
  // repeats. So the path of the long run, followed back from its end, passes every `blocks` through this vertex.
  struct PathPart {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int64_t blocks = 1;
  };
  std::optional<PathPart> repeating_part(std::span<const VertexId> path, const Timeline& timeline,
                                         const Extension& of) const;
  // Whether the roots of starts (model/timeline/causes.h) are those of `blocks` blocks earlier, a multiple of the
  // cycle, in as many blocks before the cuts as the vertices of `blocks` blocks and those after the cuts depend on, and
  // so in the copies.
  bool roots_repeat(std::span<const IdleRoot> roots, std::int64_t blocks) const;
  // Whether every lane but those of collectives has vertices in the last block or after its cut, so that it is free
  // later by `time` in the long run.
  bool lanes_continue() const;

 private:
  SteadyState(const OpGraph& graph, int removed, int unit, std::vector<ShortSchedule::Cut> cuts, int earlier);

  // Repeating vertices of one rank before the cut, in the order of its list; the same number per block.
  struct Repeats {
    std::vector<VertexId> vertices;
    std::int64_t per_block = 0;
  };
  std::optional<Extension> extension_at_cuts(const Prices& prices, const Timeline& timeline, double tolerance) const;
  bool cut_earlier();
  void find_positions();
  bool close_cuts();
  bool repeat_alike();
  std::int64_t blocks_back(VertexId v) const;
  std::optional<Duration> growth_of(const Timeline& timeline, std::int64_t cycle, std::int64_t depth,
                                    double tolerance) const;
  bool repeats_in_flight(const Timeline& timeline, std::int64_t cycle, Duration growth) const;
  Duration first_changed(const Timeline& timeline, std::int64_t cycle, Duration growth) const;
  std::vector<char> later_by(const Timeline& timeline, std::int64_t cycle, Duration growth) const;

  const OpGraph& graph_;
  int removed_;
  int unit_;
  std::vector<ShortSchedule::Cut> cuts_;  // by rank
  std::vector<std::int64_t> position_;    // by vertex
  std::vector<Repeats> repeats_;          // by rank
  // By block counted back from the cut (0: after the cut): the number of blocks back to its farthest dependency.
  std::vector<std::int64_t> reach_;
  bool usable_ = false;
  int earlier_ = 0;                          // blocks by which these cuts are earlier than those of the schedule
  std::unique_ptr<SteadyState> cut_before_;  // one block earlier; made when it is needed
};

}  // namespace sluice::sim
