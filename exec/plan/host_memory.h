#pragma once

#include <cstdint>
#include <span>

#include "exec/plan/run_plan.h"

namespace sluice::exec {

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Returns the bytes that processes of this host can still allocate within the limit of their control group; the largest
// int64 if unknown.
std::int64_t available_memory_bytes();

// Throws DoesNotFit, with the memory of the largest rank, if the arenas of the workers on this host need more than
// `available_bytes`. `workers_here`: number of workers per pipeline rank.
void check_memory(const RunPlan& plan, std::span<const int> workers_here, std::int64_t available_bytes);

}  // namespace sluice::exec
