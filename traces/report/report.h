#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/input/files.h"
#include "traces/figure/drawn_run.h"

namespace sluice::traces {

// One metric of a report's summary.
struct ReportMetric {
  std::string label;             // "Makespan"
  std::string value;             // "33 s"
  std::string explanation;       // may be empty
  std::optional<double> number;  // `value` as a number; two runs differ by percent
  bool is_fraction = false;      // `number` is a fraction of 1; two runs differ by percentage points
  std::string warning;           // shown beside the value: "does not fit"; may be empty
};

struct ReportRun {
  std::string name;  // "1f1b"; for two runs, distinct names
  DrawnRun drawn;
  std::vector<ReportMetric> headline;
  std::string scenario;  // JSON, shown verbatim
};

struct Report {
  std::string title;
  std::string command_line;  // shown verbatim
  std::string version;
  std::vector<ReportRun> runs;  // one, or two on one time axis
  bool embedded = false;        // show timeline and memory only, for a frame of another page
};

// Writes the report as one self-contained HTML file. Summary, tables and scenario are text; timeline and memory are
// drawn by an inline script, whose hash is in the content security policy. The output is deterministic. Times are exact
// to the nanosecond up to 2^53 ns (104 days).
void write_report(const ByteSink& sink, const Report& report);

// Writes the report to a file, which is replaced only when the report is complete. Throws InputError naming `path`.
void write_report_file(const std::string& path, const Report& report);

}  // namespace sluice::traces
