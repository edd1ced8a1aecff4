#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/batches/documents.h"

namespace sluice::model {

// A document that context parallelism splits over `ranks` ranks, a power of two, from rank `first` on, a multiple of
// it.
struct SharedDocument {
  std::int64_t tokens = 0;
  int ranks = 1;
  int first = 0;
};

// The documents between two barriers over all ranks. Each rank runs its own one after the other, those on the most
// ranks first: since the ranks of a document also share all that ran before it, none waits within a group.
using ContextGroup = std::vector<SharedDocument>;

// Documents to distribute over ranks (dynamic context parallelism). A document is split over enough ranks that each has
// at most `most_tokens` of its tokens.
struct ContextProblem {
  Documents documents;
  int ranks = 1;  // a power of two
  std::int64_t most_tokens = 1;
  // Time of a document of `tokens` on each of `ranks` ranks, in any unit.
  std::function<double(std::int64_t tokens, int ranks)> time;
};

// Returns the least power of two ranks with at most `most_tokens` tokens each.
int least_ranks(std::int64_t tokens, std::int64_t most_tokens);

// Returns the time of each rank in a group.
std::vector<double> times_of_ranks(const ContextGroup& group, const ContextProblem& problem);

// Groups by the rule of Megatron-LM's scheduler of hybrid context parallelism (pull request 2282, "balanced"): every
// document on its least ranks; sorted by length and cut into lists of about equal work, as many as there are such
// numbers of ranks, of which the first whose next document has a place is served; to the least loaded ranks that
// already share a document of that number, or to free ones; a group ends when no document has a place or, once shorter
// documents are placed, its ranks are within 5 % of each other; the last document of the fullest ranks is taken back
// while that helps; and idle ranks join those with the fewest. Precondition: every document has at most ranks x
// most_tokens tokens.
std::vector<ContextGroup> megatron_groups(const ContextProblem& problem);

// Returns one group of all documents whose slowest rank ends early: the numbers of ranks are the ones with the least
// work that meet a time, for many such times, each assigned longest first, and then changed one document at a time.
// Same precondition.
ContextGroup fastest_group(const ContextProblem& problem);

// No group of all documents ends earlier.
double least_time(const ContextProblem& problem);

}  // namespace sluice::model
