#pragma once

#include <string>

#include "model/input/json_reader.h"

namespace sluice::bench::accuracy {

// Reads benchmarks/accuracy/scenarios/NAME.json, the settings that a table does not contain.
Json base_of(const char* name);

// Adds a run to a table that `sluice calibrate` reads, with one column for each part of the scenario. `place` is the
// note of the row. An empty table gets its header.
void add_document(const Json& scenario, const std::string& place, double seconds, std::string& table);

}  // namespace sluice::bench::accuracy
