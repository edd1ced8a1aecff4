#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/input/files.h"
#include "traces/figure/drawn_run.h"

namespace sluice::traces {

// One line of a report's headline.
struct ReportFigure {
  std::string label;             // "Makespan"
  std::string value;             // "33 s"
  std::string explanation;       // may be empty
  std::optional<double> number;  // what `value` says: two runs differ by so many percent of it
  bool share = false;            // `number` is a share of 1: they differ by points
};

struct ReportRun {
  std::string name;  // "1f1b"; of two runs, what tells them apart
  DrawnRun drawn;
  std::vector<ReportFigure> headline;
  std::string scenario;  // JSON, shown as it stands
};

struct Report {
  std::string title;
  std::string command_line;  // shown as it stands
  std::string version;
  std::vector<ReportRun> runs;  // one, or two on one time axis
};

// Writes the report as one HTML file that needs nothing else: headline, tables and scenario are text, timeline and
// memory are drawn by its own script, whose hash its content security policy names. The same report gives the same
// bytes. Times are exact to the nanosecond up to 2^53 ns (104 days).
void write_report(const ByteSink& sink, const Report& report);

// The same into a file: afterwards it holds the whole report, or what it held before. Throws InputError naming `path`.
void write_report_file(const std::string& path, const Report& report);

}  // namespace sluice::traces
