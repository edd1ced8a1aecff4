#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace sluice::sim {

// One rank of a pipeline: its ops, their minimal delays through other ranks, and its memory limit. Microbatches are
// identical, so the ops of a group (kind, stage and slice) run in the order of their microbatches. Times are in
// nanoseconds.
struct RankProblem {
  struct Group {
    int machine = 0;
    std::int64_t duration = 0;
    std::int64_t takes = 0;  // bytes, as in OpTable
    std::int64_t keeps = 0;
    std::vector<int> after;  // the j-th op starts after the j-th ones of these groups have ended
    int behind = -1;         // and after that of this group has ended, and `delay`; -1: none
    std::int64_t delay = 0;
    std::vector<std::int64_t> heads;  // by microbatch: earliest start
  };
  int microbatches = 1;
  std::vector<std::int64_t> limit;  // by machine; the bound is of machine 0
  std::vector<Group> groups;        // each after those that it waits for

  std::int64_t work() const;  // of all ops
  // The same orders from their ends backwards. `tails`: by group and microbatch, the minimal time after the op.
  RankProblem reversed(const std::vector<std::vector<std::int64_t>>& tails) const;
};

// Searches for the least time for which a rank idles in [0, until], over all orders of its ops. It extends the partial
// orders with the least idle time first, those with a bound of what follows, so that the bound of the next one is a
// bound for all whenever the search ends. Of two partial orders of the same ops, it drops one that ends no earlier and
// whose results arrive no earlier.
class IdleSearch {
 public:
  // `least`: a bound that is known.
  IdleSearch(RankProblem problem, std::int64_t until, std::int64_t least = 0);

  // Extends at most `most_orders` partial orders, and returns their number.
  std::int64_t extend(std::int64_t most_orders);
  std::int64_t bound() const { return open_.empty() ? best_ : std::min(best_, std::max(least_, open_.top().bound)); }
  bool exact() const { return bound() == best_; }

 private:
  // Partial orders of the same ops. Only their times differ.
  struct Ops {
    std::size_t counts = 0;  // position in `counts_`: by group the number of ops, then by machine whether it defers:
                             // it waits for an arrival
    std::int32_t newest = -1;
    std::int32_t next = -1;  // in the same bucket
  };
  // By machine the end of the last op, then by group the earliest starts of the ops whose input has arrived or will
  // arrive at a known time, as far as that is due to arrivals, heads and the machine.
  struct Partial {
    std::size_t times = 0;  // position in `times_`
    std::int32_t ops = 0;
    std::int32_t older = -1;  // of the same ops
    bool dropped = false;
  };
  struct Open {
    std::int64_t bound = 0;
    std::int64_t end = 0;  // of machine 0
    std::int32_t partial = 0;
    bool operator<(const Open& other) const {  // in a queue whose top is the largest
      return std::tuple(other.bound, end, other.partial) < std::tuple(bound, other.end, partial);
    }
  };
  // The partial order that is extended or added.
  struct State {
    std::vector<std::int32_t> counts;
    std::vector<std::int64_t> times;
    std::vector<std::size_t> first;  // by group: position in `times`
    std::vector<std::int64_t> held;  // by machine: bytes
    std::int64_t work = 0;           // of machine 0
  };

  void load(const Partial& partial);
  void place_groups(State& state) const;
  // The earliest start of the next op of a group; `until_` if there is none before.
  std::int64_t start_of(std::size_t g) const;
  void extend();
  void run(std::size_t g, std::int64_t start);
  void add();
  std::int32_t ops_of(const std::vector<std::int32_t>& counts);
  void grow_buckets();
  std::int64_t enabled_by(std::int64_t bytes) const;
  std::int64_t least_later();

  RankProblem problem_;
  std::int64_t until_;
  std::int64_t least_;
  std::int64_t best_;                            // of the complete orders
  std::vector<bool> enabled_;                    // by group: takes no memory, and follows an op of the rank that does
  std::vector<std::vector<std::size_t>> feeds_;  // by group: those behind it
  std::int64_t least_kept_;                      // by an op that takes memory
  std::int64_t most_enabled_ = 0;                // duration of such an op and of those that it enables
  double most_per_byte_ = 0;                     // the same per byte
  std::vector<std::int32_t> counts_;
  std::vector<std::int64_t> times_;
  std::vector<Ops> ops_;
  std::vector<Partial> partials_;
  std::vector<std::int32_t> buckets_;
  std::priority_queue<Open> open_;
  std::int64_t extended_ = 0;  // bound of the order that is extended
  State state_;                // extended
  State next_;                 // added
  std::vector<std::int64_t> starts_;
  // For `least_later`.
  std::vector<std::vector<std::int64_t>> earliest_;              // by group: starts of the ops that have not run
  std::vector<std::pair<std::int64_t, std::int64_t>> pending_;   // start, duration
  std::vector<std::pair<std::int64_t, std::int64_t>> releases_;  // end, bytes
};

// The problem of some ranks, of which the first one is machine 0, and its reverse.
using RanksProblems = std::function<std::pair<RankProblem, RankProblem>(const std::vector<int>& ranks)>;

// Returns a lower bound of the makespan: the work of a rank and the least time for which it idles in the first half of
// the makespan and, with its ops reversed, in the second half, maximal over `ranks`. Where that is exact, neighbors of
// the best rank become machines, too, and the time becomes longer. `least`: a bound that is known. Extends about
// `most_orders` partial orders.
std::int64_t idle_bound(const std::vector<int>& ranks, int num_ranks, const RanksProblems& problems_of,
                        std::int64_t least, std::int64_t most_orders);

}  // namespace sluice::sim
