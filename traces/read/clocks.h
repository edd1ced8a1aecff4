#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/rows/run_rows.h"

namespace sluice::traces {

// A transfer as its two ends saw it, each by its own clock.
struct Message {
  int from = 0;
  int to = 0;
  Duration sent{};      // the send ended
  Duration received{};  // the receive ended
};

// What to add to the times of each rank so that they are those of one clock.
struct ClockAlignment {
  enum class By : std::uint8_t {
    none,       // nothing to do: no op starts before what it needs from other ranks has ended
    messages,   // sends and receives
    causality,  // the order of ops
  };
  By by = By::none;
  std::vector<Duration> offsets;  // by rank
  std::int64_t num_messages = 0;
  Duration remaining{};  // by causality: how much too early an op still starts, whatever the offsets

  std::string describe() const;  // in words
};

// By messages where they join all ranks, both ways between each two of them: of two ranks, the fastest message each way
// is taken to be on its way for as long (as NTP does it); ranks are joined along pairs with the least such time. Rank 0
// keeps its clock.
//
// Otherwise by causality, with as few corrections as a search that does not turn back finds: no op may start before the
// ops that it needs of other ranks (the stage before of an F, the next stage of a B or I) have ended there. Where the
// clocks keep to that they stay as they are. Else clocks are held, those in fewest contradictions first, as long as the
// others can still be moved to keep to it; each of the others is put into the middle of what is then possible. What no
// offsets can mend (clocks that drift) is left, as little as possible. Precondition: at most kMostClocks ranks.
inline constexpr int kMostClocks = 128;
ClockAlignment align_clocks(int num_ranks, std::span<const OpRow> rows, std::span<const Message> messages);

}  // namespace sluice::traces
