#pragma once

#include <cstdint>
#include <span>

#include "exec/plan/run_plan.h"

namespace sluice::exec {

// Bytes that processes of this host, within the limit of their control group, can still have. Nothing known: no limit.
std::int64_t available_memory_bytes();

// Throws DoesNotFit, with what each rank needs, if the arenas of so many workers of each pipeline rank on this host are
// more than `available_bytes`.
void check_memory(const RunPlan& plan, std::span<const int> workers_here, std::int64_t available_bytes);

}  // namespace sluice::exec
