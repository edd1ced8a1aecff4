#pragma once

#include <cstdint>
#include <string>

#include "model/namespaces.h"

namespace sluice::exec {

// Of a process on this host. One that has ended and was not yet waited for is dead.
enum class ProcessState : std::uint8_t { running, suspended, dead };

// `started` is what process_start said of it, so that another process with its number is not taken for it; 0: any.
ProcessState process_state(std::int64_t process, std::uint64_t started = 0);

// When a process started, in clock ticks since the host did; 0 if that is not known.
std::uint64_t process_start(std::int64_t process);

std::string host_name();

}  // namespace sluice::exec
