#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

// A transfer whose send and receive were both recorded, each on the clock of its rank.
struct MatchedMessage {
  int from = 0;
  int to = 0;
  Duration sent{};      // end of the send
  Duration received{};  // end of the receive
};

// The offsets to add to the times of each rank to put them on one clock.
struct ClockAlignment {
  enum class By : std::uint8_t {
    none,       // no adjustment: no op starts before its dependencies on other ranks end
    messages,   // from sends and receives
    causality,  // from dependencies of ops
  };
  By by = By::none;
  std::vector<Duration> offsets;  // by rank
  std::int64_t num_messages = 0;
  Duration remaining{};  // by causality: how early an op still starts, with the best offsets

  std::string describe() const;  // for the user
};

// Aligns by messages if pairs of ranks with messages in both directions connect all ranks. As in NTP, the fastest
// messages of the two directions of a pair are assumed to take equally long; ranks are connected by a spanning tree of
// the pairs with the shortest round trips. Rank 0 keeps its clock.
//
// Otherwise aligns by causality: no op may start before its dependencies on other ranks end (the previous stage for an
// F, the next stage for a B or I). If the clocks satisfy that, they are not adjusted. Otherwise a greedy search keeps
// as many clocks as possible, those with the fewest violations first, and moves each of the others to the middle of its
// feasible interval. Violations that no offsets can remove (drifting clocks) remain, with the smallest possible
// maximum. Precondition: at most kMaxClocks ranks.
inline constexpr int kMaxClocks = 128;
ClockAlignment align_clocks(int num_ranks, std::span<const OpRow> rows, std::span<const MatchedMessage> messages);

}  // namespace sluice::traces
