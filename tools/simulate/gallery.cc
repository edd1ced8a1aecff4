#include "tools/simulate/gallery.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/engine/predict.h"
#include "tools/command/version.h"
#include "tools/simulate/report_run.h"
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

}  // namespace

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

}  // namespace sluice::tools
