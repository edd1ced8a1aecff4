#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/input/files.h"
#include "traces/figure/figure.h"

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
  std::string about;     // of a gallery: one sentence
};

// What a prediction rests on that was not specified.
struct ReportAssumption {
  std::string setting;
  std::string value;
  std::string source;
};

// What makes a report live: the reader changes the scenario, and the page simulates it.
struct LivePage {
  std::string_view engine;  // the WebAssembly module (tools/live), which must outlive the page
  std::string request;      // JSON: the first request of the page (traces/report/live.js)
};

struct Report {
  std::string title;
  std::string command_line;  // shown verbatim
  std::string version;
  std::vector<ReportRun> runs;   // one, two to compare, or the families of a gallery; on one time axis
  std::optional<LivePage> live;  // with one run
  std::vector<ReportAssumption> assumptions = {};  // of the first run
  std::vector<std::string> not_modeled = {};       // the same
  bool embedded = false;                           // show timeline and memory only, for a frame of another page
};

// A table of text; the first cell of a row is its heading.
struct ReportTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// Results without a timeline.
struct ReportPage {
  std::string title;
  std::string command_line;  // shown verbatim
  std::string version;
  std::vector<ReportMetric> headline;
  std::string picture;        // SVG
  std::string picture_title;  // what it shows
  std::vector<ReportTable> tables;
};

// Returns a self-contained page in the style of a report, without scripts, from which nothing is loaded.
std::string page_html(const ReportPage& page);

// The runs are named by letters: A to Z, then a to z (page.js has the same).
inline constexpr std::size_t kMostReportRuns = 52;
constexpr char run_letter(std::size_t run) { return static_cast<char>(run < 26 ? 'A' + run : 'a' + (run - 26)); }

// Whether a report has more runs than can be compared in detail: its summary is a table, and it has no other tables.
inline bool is_gallery(const Report& report) { return report.runs.size() > 2; }

// Writes the report as one self-contained HTML file. Summary, tables and scenario are text; timeline and memory are
// drawn by an inline script, whose hash is in the content security policy. The output is deterministic. Times are exact
// to the nanosecond up to 2^53 ns (104 days).
void write_report(const ByteSink& sink, const Report& report);

// Writes the report to a file, which is replaced only when the report is complete. Throws InputError naming `path`.
void write_report_file(const std::string& path, const Report& report);

}  // namespace sluice::traces
