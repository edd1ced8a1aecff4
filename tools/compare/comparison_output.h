#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "traces/compare/comparison.h"
#include "traces/read/trace_read.h"

namespace sluice::tools {

// One of the two runs of a comparison.
struct ComparedRun {
  std::string what;  // "simulated" or "read"
  TraceRun read;
};

// Reads a trace (a file, a folder, or files separated by commas), or simulates a scenario file. `step` selects an
// iteration of a trace. Throws InputError, ScheduleError.
ComparedRun compared_run(const std::string& word, std::optional<std::int64_t> step);

// Compares two runs, which errors name `first` and `second`. Throws InputError if their stages, microbatches or slices
// differ, unless only kinds of ops are compared.
Comparison compared(const RunRows& a, const RunRows& b, const ComparisonOptions& how, const std::string& first,
                    const std::string& second);

// Returns a comparison as JSON (sluice.comparison/1, docs/formats.md).
nlohmann::ordered_json comparison_document(const Comparison& comparison);
// Returns it as text for the terminal.
std::string comparison_text(const Comparison& comparison, const nlohmann::ordered_json& document);

}  // namespace sluice::tools
