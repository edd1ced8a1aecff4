#pragma once

#include <optional>

#include "model/schedule/schedule.h"

namespace sluice::sim {

// Returns a schedule without a flush for at least `batches` batches: that of its family where the family builds
// `schedule`, otherwise its lists with the ops in their middle repeated for later microbatches. Returns nothing if some
// list does not repeat there, or for more ops than are simulated in a second or two.
std::optional<Schedule> lengthened(const Schedule& schedule, int batches);

}  // namespace sluice::sim
