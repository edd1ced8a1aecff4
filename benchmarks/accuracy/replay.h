#pragma once

#include <functional>

#include "model/schedule/schedule.h"

namespace sluice::bench::accuracy {

// What published runs do and OpGraphs do not, in seconds.
struct ReplayCosts {
  std::function<double(const Op&)> op;
  std::function<double(int, int)> hop;  // from rank to rank: what one has sent the other has this much later
  // The share of that time for which the sender cannot start its next op: 1 where it waits for its transfers.
  double blocked = 0;
  // Whether the ranks at the ends wait for every microbatch that comes round to their next chunk, or only for the
  // first one of a group of num_ranks.
  bool every_wrap_waits = true;
};

struct ReplayResult {
  double makespan = 0;
  double span = 0;  // largest last end minus first start of one rank
};

// Longest paths through a schedule of unsliced microbatches on one route. Throws ScheduleError for a deadlock.
ReplayResult replay(const Schedule& schedule, const ReplayCosts& costs);

}  // namespace sluice::bench::accuracy
