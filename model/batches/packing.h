#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sluice::model {

// Items to distribute over bins so that the heaviest bin is as light as possible. No bin may stay empty or have more
// tokens than `cap` (0: any number).
struct PackingProblem {
  std::vector<double> weight;        // >= 0
  std::vector<std::int64_t> tokens;  // likewise by item
  int bins = 1;                      // at most the number of items
  std::int64_t cap = 0;
  std::size_t most_items = 0;  // in a bin; 0: any number
};

// The bin of every item.
using Packing = std::vector<int>;

// Weight of the heaviest bin.
double heaviest(const PackingProblem& problem, const Packing& packing);

// The heaviest item first, each into the lightest bin that has room. Nothing if one finds no room.
std::optional<Packing> pack_greedily(const PackingProblem& problem);

// Karmarkar and Karp's largest differencing, for any number of bins: partial solutions with the largest difference
// between their bins are added, heavy bins to light ones. Nothing if a bin exceeds a limit, which it does not know.
std::optional<Packing> pack_by_differencing(const PackingProblem& problem);

struct ExactPacking {
  Packing packing;
  bool proven = false;  // no packing has a lighter heaviest bin
};

// Depth-first search that improves on the greedy packing and the one by differencing, and ends after `most_nodes`
// assignments. Nothing if neither of the three finds a packing.
std::optional<ExactPacking> pack_exactly(const PackingProblem& problem, std::int64_t most_nodes = 5'000'000);

}  // namespace sluice::model
