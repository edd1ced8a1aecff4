#pragma once

#include <optional>
#include <string>

#include "exec/watch/failure.h"

namespace sluice::exec {

// The first failure of a run, as a file in the folder of its flight recorders: the processes that share the folder all
// report this one, because what each of them observes later may be a consequence of it.

// The file's name.
inline constexpr const char* kDiagnosisName = "diagnosis.txt";

// Removes the diagnosis of an earlier run. Called before any process of this run is watched.
void remove_diagnosis(const std::string& folder);

// Returns the diagnosis of a run; nothing if there is none, or if it cannot be read.
std::optional<RunFailure> read_diagnosis(const std::string& folder);

// Makes `failure` the diagnosis if there is none. Returns the diagnosis: exactly one process has its own. If the folder
// takes no file, returns `failure`.
RunFailure agree_on_diagnosis(const std::string& folder, const RunFailure& failure);

}  // namespace sluice::exec
