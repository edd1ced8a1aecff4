#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/namespaces.h"
#include "model/schedule/family.h"
#include "sim/engine/predict.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/outputs.h"
#include "tools/command/version.h"
#include "tools/simulate/families_json.h"
#include "tools/simulate/report_run.h"
#include "tools/simulate/simulation_report.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

constexpr int kGalleryRanks = 4;
constexpr int kGalleryMicrobatches = 8;
constexpr int kGallerySlices = 2;
constexpr int kGalleryBatches = 2;  // where there is no flush between them

struct GalleryRun {
  std::unique_ptr<Setup> setup;
  Prediction prediction;
};

GalleryRun simulated_family(const Family& family, int microbatches) {
  Scenario scenario;
  scenario.source = "gallery";
  scenario.schedule = family.name;
  scenario.training.pp = kGalleryRanks;
  scenario.microbatches = microbatches;
  if (family.asynchronous) scenario.batches = kGalleryBatches;
  scenario.shape.slice_lengths.assign(family.sliced ? kGallerySlices : 1, 1);
  GalleryRun run;
  run.setup = std::make_unique<Setup>(scenario);
  run.prediction = predict(*run.setup);
  return run;
}

GalleryRun simulated_family(const Family& family) {
  try {
    return simulated_family(family, kGalleryMicrobatches);
  } catch (const InputError&) {  // hanayo has as many microbatches as ranks
    return simulated_family(family, kGalleryRanks);
  }
}

std::vector<ReportMetric> gallery_metrics(const GalleryRun& run) {
  const Metrics& metrics = run.prediction.metrics;
  double in_flight = 0;
  for (const RankMetrics& rank : metrics.ranks) in_flight = std::max(in_flight, rank.peak_in_flight);
  const auto metric = [](const std::string& label, const std::string& value, double number) {
    return ReportMetric{.label = label, .value = value, .explanation = "", .number = number, .warning = ""};
  };
  return {metric("iteration", time_text(run.prediction.iteration), to_seconds(run.prediction.iteration)),
          metric("bubble", fmt::format("{:.1f} %", 100 * metrics.bubble_fraction), metrics.bubble_fraction),
          metric("in flight", fmt::format("{:.4g}", in_flight), in_flight)};
}

// Writes an HTML page with the timelines of all schedule families on one time axis, for 4 ranks and 8 microbatches (4
// where a family needs as many as ranks), 2 slices where it has slices, 2 batches without a flush, and F = I = W = 1 s.
// `command_line` is shown. Throws InputError naming `path`.
void write_gallery(const std::string& path, const std::string& command_line) {
  std::vector<GalleryRun> runs;
  Report report{.title = fmt::format("Schedule families: {} ranks, {} microbatches, F = I = W = 1 s", kGalleryRanks,
                                     kGalleryMicrobatches),
                .command_line = command_line,
                .version = kVersion,
                .runs = {},
                .live = {}};
  for (const Family& family : all_families()) {
    runs.push_back(simulated_family(family));
    const GalleryRun& run = runs.back();
    report.runs.push_back({.name = run_title(*run.setup),
                           .drawn = {},
                           .headline = gallery_metrics(run),
                           .scenario = "",
                           .about = fmt::format("{} ({})", family.summary, family.source)});
  }
  // Refers to the predictions, which do not move from here on.
  for (std::size_t i = 0; i < runs.size(); ++i) {
    report.runs[i].drawn = drawn_run(*runs[i].setup, runs[i].prediction);
    report.runs[i].drawn.memory = {};
  }
  write_report_file(path, report);
}

std::string parameters(const Family& family) {
  std::string out = "--pp --microbatches";
  if (family.fixed_chunks == 0) out += " --vpp";
  if (family.grouped) out += " --group";
  if (family.sliced) out += " --slices";
  if (family.asynchronous) out += " --batches";
  return out;
}

void print_table() {
  for (const Family& family : all_families()) {
    fmt::print("{:<20} {}\n", family.name, family.summary);
    fmt::print("{:<20}   {}{}{}\n", "", parameters(family), family.split_backward ? "; split backward (I and W)" : "",
               family.replicas > 1 ? "; two replicas of each stage" : "");
    if (!family.aliases.empty()) fmt::print("{:<20}   also {}\n", "", fmt::join(family.aliases, ", "));
    fmt::print("{:<20}   {}\n", "", family.source);
  }
  fmt::print("\nBesides these families, --schedule auto searches for a schedule for given costs and memory.\n");
}

}  // namespace

Subcommand add_schedules_command(CLI::App& app, std::vector<std::string> arguments) {
  CLI::App* command = app.add_subcommand("schedules",
                                         "List the schedule families, with their parameters, purpose and source.\n\n"
                                         "Examples:\n"
                                         "  sluice schedules\n"
                                         "  sluice schedules --json\n"
                                         "  sluice schedules --gallery families.html");
  command->group("Schedules");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON document (sluice.families/1)");
  const auto gallery = std::make_shared<std::string>();
  add_output(*command, "--gallery", *gallery,
             "Write an HTML page to this file with the timelines of all families on one time axis");
  return {command, [json, gallery, arguments = std::move(arguments)] {
            if (*json && !gallery->empty()) throw InputError("schedules: --json and --gallery exclude each other");
            if (!gallery->empty()) {
              write_gallery(*gallery, shell_line(arguments));
            } else if (*json) {
              fmt::print("{}", json_text(families_json()));
            } else {
              print_table();
            }
            return kDone;
          }};
}

}  // namespace sluice::tools
