#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/graph/communicator_options.h"
#include "model/graph/communicators.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// Returns what the hosts issue for a schedule with communication: its ops, sends and receives in the order of the
// lists, each communication on its own or, if `batched`, adjacent ones without an op between them as one group.
// UNSHARD, RESHARD and REDUCE_GRAD, which connect no ranks of a pipeline, are left out. `schedule` must outlive the
// result.
HostProgram host_program(const Schedule& schedule, bool batched);

// Returns the cycle that sends and receives cause even if sends are buffered and messages have tags, as text; empty if
// there is none.
std::string cycle_of_late_sends(const Schedule& schedule);

// A rule that gives each message a communicator.
struct CommunicatorMapping {
  std::string name;
  std::function<std::string(const Message&)> communicator;
};

// The rules by name, from the coarsest: one (one communicator), direction (activations and gradients), pair (each pair
// of ranks), edge (each ordered pair of ranks), logical (each ordered pair of stages).
std::span<const CommunicatorMapping> communicator_mappings();

// Returns the rule of that name, or reads one from a file (sluice.communicators/1) if `name` ends in ".json": a message
// has the first communicator whose conditions it meets. Throws InputError; `place` names the setting.
CommunicatorMapping communicator_mapping(const std::string& name, const std::string& place);

// Returns a schedule without communication with that of PyTorch's runtime. Throws ScheduleError if its ops deadlock.
Schedule with_receives(const Schedule& schedule, Receives receives);

// Reads a mapping's name or file and, after commas in any order, serialized, batched, deferred, late, device and host.
// The mapping is empty if the text has none. Throws InputError; `place` names the setting.
CommunicatorOptions read_communicators(const std::string& text, const std::string& place);

}  // namespace sluice::model
