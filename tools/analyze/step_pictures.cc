#include "tools/analyze/step_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/scenario.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "sim/engine/predict.h"
#include "tools/analyze/measured_scenario.h"
#include "tools/command/messages.h"
#include "tools/command/version.h"
#include "tools/simulate/simulation_report.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/figure/figure.h"
#include "traces/measured/drawn_step.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

// Shifts of ops below this fraction of a step are not worth a note.
constexpr double kSmallShift = 1e-3;

DrawnStep selected_step(const StepPictures& pictures, const MeasuredRun& run) {
  int step = usual_step(run);
  if (pictures.step) {
    const auto found = std::find(run.steps.begin(), run.steps.end(), *pictures.step);
    if (found == run.steps.end()) {
      throw InputError(fmt::format("--step {}: expected one of the {} steps read, from {} to {}", *pictures.step,
                                   run.steps.size(), run.steps.front(), run.steps.back()));
    }
    step = static_cast<int>(found - run.steps.begin());
  }
  const int replica = pictures.replica.value_or(0);
  if (replica >= run.replicas) {
    throw InputError(fmt::format("--replica {}: expected 0 to {}", replica, run.replicas - 1));
  }
  return drawn_step(run, step, replica);
}

std::string title_of(const DrawnStep& step, const Analysis& analysis) {
  const MeasuredRun& run = analysis.run;
  std::string out = fmt::format("{}, {}", analysis.schedule.family.empty() ? "own order" : analysis.schedule.family,
                                counted(run.ranks, "rank", "s"));
  if (run.chunks > 1) out += fmt::format(" x {} chunks", run.chunks);
  out += fmt::format(", {}, measured, step {}", counted(run.microbatches, "microbatch", "es"), step.step);
  if (run.replicas > 1) out += fmt::format(", replica {}", step.replica);
  return out;
}

// The schedule of a family with the mean measured times.
SimulatedRun simulated_means(const Analysis& analysis) {
  SimulatedRun run;
  const nlohmann::json document = measured_scenario(analysis);
  run.scenario = document.dump(2) + "\n";
  run.setup = std::make_unique<Setup>(scenario_from_json(document, "measured scenario", ""));
  run.prediction = predict(*run.setup, {.keep_memory = true});
  return run;
}

ReportRun measured_report_run(const DrawnRun& drawn, const DrawnStep& step) {
  ReportRun out{.name = drawn.title, .drawn = drawn};
  out.headline.push_back({"Iteration", time_text(step.metrics.makespan),
                          "from the first start to the last recorded end", to_seconds(step.metrics.makespan)});
  for (ReportMetric& metric : timeline_headline(step.metrics, idle_by_cause(*step.graph, step.timeline),
                                                critical_path(*step.graph, step.timeline))) {
    out.headline.push_back(std::move(metric));
  }
  out.scenario = "none: the run was measured";
  return out;
}

}  // namespace

std::string write_step_pictures(const StepPictures& pictures, const Analysis& analysis) {
  const DrawnStep step = selected_step(pictures, analysis.run);
  const DrawnRun drawn{.graph = step.graph.get(),
                       .timeline = &step.timeline,
                       .metrics = &step.metrics,
                       .title = title_of(step, analysis)};
  std::optional<SimulatedRun> means;
  if (!analysis.schedule.family.empty()) means = simulated_means(analysis);
  if (!pictures.trace.empty()) {
    const TraceOptions options{.idle = true};
    print_message(trace_size_warning(count_trace_events(*step.graph, step.timeline, {}, options)));
    write_trace_file(pictures.trace, *step.graph, step.timeline, {}, options);
  }
  if (!pictures.svg.empty()) {
    std::vector<DrawnRun> runs = {drawn};
    if (means) runs.push_back(drawn_run(*means->setup, means->prediction));
    write_file_whole(pictures.svg, svg_figure(runs, {.memory = false}));
  }
  if (!pictures.report.empty()) {
    Report report{.title = drawn.title, .command_line = pictures.command_line, .version = kVersion};
    report.runs.push_back(measured_report_run(drawn, step));
    if (means) {
      report.runs.push_back(report_run(*means->setup, means->prediction, means->scenario));
      report.runs.back().name += ", mean times";
    }
    write_report_file(pictures.report, report);
  }
  if (to_seconds(step.moved) < kSmallShift * to_seconds(step.metrics.makespan)) return "";
  return fmt::format("drawn step {}: an op was moved by {} to start after what it waits for", step.step,
                     time_text(step.moved));
}

}  // namespace sluice::tools
