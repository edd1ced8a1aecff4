#pragma once

#include <cstdint>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// State of a process on this host. A process that has ended but was not yet reaped is dead.
enum class ProcessState : std::uint8_t { running, suspended, dead };

// Returns the state of `process`. `started`: its process_start, which distinguishes it from a later process with the
// same id; 0 accepts any.
ProcessState process_state(std::int64_t process, std::uint64_t started = 0);

// Returns the start time of a process in clock ticks since the host booted, or 0 if it is unknown.
std::uint64_t process_start(std::int64_t process);

std::string host_name();

}  // namespace sluice::exec
