#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
  std::int64_t bound() const {
    return open_.empty() ? best_ : std::min(best_, std::max(least_, std::get<0>(open_.top())));
  }
  bool exact() const { return bound() == best_; }

 private:
  // The ops run so far.
  struct Partial {
    std::vector<int> run;                            // by group
    std::vector<std::int64_t> clock;                 // by machine: end of the last op
    std::vector<std::int64_t> held;                  // by machine: bytes
    std::vector<char> defers;                        // by machine: waits for an arrival
    std::int64_t work = 0;                           // of machine 0
    std::vector<std::vector<std::int64_t>> arrived;  // by group: arrivals of the results that it has not read
  };

  // The earliest start of the next op of a group; `until_` if there is none before.
  std::int64_t start_of(const Partial& partial, std::size_t g) const;
  void extend(const Partial& partial);
  void add(Partial partial);
  bool covers(const Partial& one, const Partial& other) const;
  std::int64_t enabled_by(std::int64_t bytes) const;
  std::int64_t least_later(const Partial& partial);

  RankProblem problem_;
  std::int64_t until_;
  std::int64_t least_;
  std::int64_t best_;              // of the complete orders
  std::vector<bool> enabled_;      // by group: takes no memory, and follows an op of the rank that does
  std::int64_t least_kept_;        // by an op that takes memory
  std::int64_t most_enabled_ = 0;  // duration of such an op and of those that it enables
  double most_per_byte_ = 0;       // the same per byte
  std::vector<Partial> partials_;
  std::vector<bool> dropped_;
  std::map<std::vector<int>, std::vector<std::size_t>> by_run_;
  using Entry = std::tuple<std::int64_t, std::int64_t, std::size_t>;  // idle time, negative end, index
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open_;
  std::int64_t extended_ = 0;  // bound of the order that is extended
  // For `least_later`.
  std::vector<std::vector<std::int64_t>> earliest_;              // by group: starts of the ops that have not run
  std::vector<std::pair<std::int64_t, std::int64_t>> ops_;       // start, duration
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
