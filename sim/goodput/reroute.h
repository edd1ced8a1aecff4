#pragma once

#include <optional>
#include <span>

#include "model/scenario/setup.h"
#include "model/units.h"

namespace sluice::sim {

// Returns the schedule of data-parallel replicas of `schedule` of which `lost[r]` have no rank r any more: other
// replicas compute the ops of its microbatches, each next to the same op of a microbatch of their own (ReCycle, Gandhi
// et al. 2024, arXiv 2405.14009), after it with `own_first`, otherwise before it, which delays only the peers. Rank r
// of replica k is r * d + k, and microbatch i of it k * m + i, for the first d of the replicas, which include all that
// differ from others. As the order of healthy replicas is kept, it cannot deadlock. Throws ScheduleError for schedules
// without a flush, with overlapped blocks, vocabulary passes, or sends and receives. Precondition: 0 <= lost[r] <
// replicas.
Schedule rerouted(const Schedule& schedule, std::span<const int> lost, int replicas, bool own_first);

// Returns by how much the makespan of `healthy`, one of data-parallel replicas, grows with lost ranks, in the
// faster of both orders; nothing if the peers' activations do not fit in memory. Throws as above.
std::optional<Duration> rerouting_delay(const Setup& healthy, std::span<const int> lost, int replicas);

}  // namespace sluice::sim
