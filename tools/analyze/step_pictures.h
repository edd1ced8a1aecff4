#pragma once

#include <optional>
#include <string>

#include "tools/analyze/analysis.h"

namespace sluice::tools {

// Files that show one measured step; empty names: none.
struct StepPictures {
  std::string report;
  std::string svg;
  std::string trace;
  std::optional<std::int64_t> step;  // its number in the files; the step nearest to the median without one
  std::optional<int> replica;        // 0 without one
  std::string command_line;          // for the report

  bool any() const { return !report.empty() || !svg.empty() || !trace.empty(); }
};

// Writes the files. The report and the figure also have, if the run follows a family, its schedule simulated with the
// mean measured times of each stage. Returns a note about times that had to be moved, or an empty string. Throws
// InputError for a step or replica that the run does not have, naming the flag.
std::string write_step_pictures(const StepPictures& pictures, const Analysis& analysis);

}  // namespace sluice::tools
