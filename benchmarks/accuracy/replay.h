#pragma once

#include <functional>

#include "model/schedule/schedule.h"

namespace sluice::bench::accuracy {

// Costs of published runs, in seconds, including effects that an OpGraph does not model.
struct ReplayCosts {
  std::function<double(const Op&)> op;
  std::function<double(int, int)> hop;  // latency of a transfer from one rank to another
  // Fraction of the latency for which the sender cannot start its next op; 1: it waits for its transfers.
  double blocked = 0;
  // Whether the first and last rank wait for every microbatch that wraps around to their next chunk, or only for the
  // first of each group of num_ranks.
  bool every_wrap_waits = true;
};

struct ReplayResult {
  double makespan = 0;
  double span = 0;  // largest last end minus first start of one rank
};

// Computes the longest paths of a schedule of unsliced microbatches on one route. Throws ScheduleError for a deadlock.
ReplayResult replay(const Schedule& schedule, const ReplayCosts& costs);

}  // namespace sluice::bench::accuracy
