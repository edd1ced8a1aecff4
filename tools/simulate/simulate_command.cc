#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "sim/planner/auto_setup.h"
#include "sim/prediction.h"
#include "tools/command/automatic.h"
#include "tools/command/command.h"
#include "tools/command/progress.h"
#include "tools/command/scenario_flags.h"
#include "tools/command/terminal.h"
#include "tools/simulate/explain_output.h"
#include "tools/simulate/simulation_output.h"
#include "tools/simulate/simulation_report.h"
#include "tools/simulate/sweep.h"
#include "traces/chrome_trace.h"
#include "traces/curve.h"
#include "traces/figure.h"
#include "traces/gantt.h"
#include "traces/op_table.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string file;
  bool json = false;
  bool gantt = false;
  int width = 0;
  std::string trace;
  std::vector<int> trace_ranks;
  bool trace_idle = false;
  std::string ops;
  std::string explain;  // a stage, "true" for all distinct ones, or empty
  std::string csv;
  std::vector<std::string> sweep;
  std::string colour = "auto";
  std::string svg;
  FigureOptions figure;
  std::string report;
  std::string compare_with;
  std::vector<std::string> arguments;
  std::unique_ptr<ScenarioFlags> flags;
};

void write_trace(const Options& options, const Setup& setup, const Prediction& prediction) {
  const TraceOptions trace{.ranks = options.trace_ranks,
                           .scenario = options.flags->document(options.file).dump(),
                           .idle = options.trace_idle};
  const std::string warning =
      trace_size_warning(count_trace_events(setup.graph(), prediction.timeline, prediction.memory, trace));
  if (!warning.empty()) fmt::print(stderr, "sluice: {}\n", warning);
  write_trace_file(options.trace, setup.graph(), prediction.timeline, prediction.memory, trace);
}

// The figure and the report, of one run or two.
void draw(const Options& options, const Setup& setup, const Prediction& prediction) {
  const auto document = options.flags->document(options.file);
  std::optional<SimulatedRun> second;
  if (!options.compare_with.empty()) second = second_run(options.compare_with, document, options.file);
  if (!options.svg.empty()) {
    std::vector<DrawnRun> runs = {drawn_run(setup, prediction)};
    if (second) runs.push_back(drawn_run(*second->setup, second->prediction));
    write_file_whole(options.svg, svg_figure(runs, options.figure));
  }
  if (!options.report.empty()) {
    write_simulation_report(options.report, setup, prediction, scenario_text(document, options.file),
                            second ? &*second : nullptr, shell_line(options.arguments));
  }
}

int simulate_one(const Options& options) {
  const PlannedSetup planned = planned_with_progress(options.flags->scenario(options.file));
  const Setup& setup = *planned.setup;
  const AutoResult* automatic = planned.automatic ? &*planned.automatic : nullptr;
  for (const int rank : options.trace_ranks) {
    if (rank < 0 || rank >= setup.schedule().num_ranks()) {
      throw InputError(
          fmt::format("--trace-ranks: expected ranks 0 to {}, got {}", setup.schedule().num_ranks() - 1, rank));
    }
  }
  std::vector<ExplainedOp> explained;
  if (!options.explain.empty()) explained = explained_ops(setup, options.explain == "true" ? "all" : options.explain);
  const bool pictures = !options.report.empty() || !options.svg.empty();
  Progress progress("trial", setup.scenario().perturbation.trials);
  const Prediction prediction = predict(setup, {.keep_memory = pictures || !options.trace.empty(),
                                                .trial_progress = [&](std::int64_t done) { progress.done(done); }});
  if (!options.trace.empty()) write_trace(options, setup, prediction);
  if (!options.ops.empty()) {
    write_file_whole(options.ops,
                     [&](const ByteSink& sink) { write_op_table(sink, setup.graph(), prediction.timeline); });
  }
  if (pictures) draw(options, setup, prediction);
  const bool fits = !prediction.fit || prediction.fit->fits;
  std::vector<Remedy> remedies;
  if (!fits && fit_advice_is_quick(setup)) {
    remedies = what_would_fit(setup);
  } else if (!fits) {
    fmt::print(stderr, "sluice: {} graph vertices are too many to try what would make it fit\n", setup.graph().size());
  }
  if (options.json) {
    fmt::print("{}", simulation_json(setup, prediction, explained, remedies, automatic));
  } else {
    fmt::print("{}", simulation_table(setup, prediction, remedies, automatic));
    if (!explained.empty()) fmt::print("{}", explain_text(setup, explained));
    if (options.gantt) {
      GanttOptions gantt{.colour = terminal_colour(options.colour)};
      gantt.width = options.width > 0 ? options.width : terminal_columns(140) - 40;
      fmt::print("\n{}", text_gantt(setup.graph(), prediction.timeline, prediction.metrics, gantt));
    }
  }
  return fits ? kDone : kAnswerIsNo;
}

// Exit code 3 if nothing of what was asked fits, 2 with the first error if nothing could be asked.
int simulate_sweep(const Options& options) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : options.sweep) axes.push_back(parse_sweep_axis(text));
  const Sweep sweep = run_sweep(options.flags->document(options.file), options.file, std::move(axes));
  bool any = false;
  bool any_fits = false;
  for (const SweepPoint& point : sweep.points) {
    any |= point.result.has_value();
    any_fits |= point.result && point.result->fits.value_or(true);
  }
  if (!any) throw InputError("--sweep: no combination can be simulated; the first: " + sweep.points.front().error);
  if (!options.csv.empty()) write_file_whole(options.csv, sweep_csv(sweep));
  if (!options.svg.empty()) write_file_whole(options.svg, svg_curve(sweep_chart(sweep)));
  fmt::print("{}", options.json ? sweep_json(sweep) : sweep_table(sweep));
  return any_fits ? kDone : kAnswerIsNo;
}

int simulate_command(const Options& options) {
  const auto refuse = [](bool given, const char* what) {
    if (given) throw InputError(fmt::format("simulate: {}", what));
  };
  refuse(options.json && options.gantt, "--json prints one document: give it or --gantt, not both");
  refuse(options.trace.empty() && options.trace_idle, "--trace-idle needs --trace");
  refuse(!options.compare_with.empty() && options.report.empty() && options.svg.empty(),
         "--compare-with adds a second run to a picture: give --report or --svg too");
  refuse(options.figure.transfers && options.svg.empty(), "--svg-transfers needs --svg");
  if (options.sweep.empty()) {
    refuse(!options.csv.empty(), "--csv is the table of a --sweep; --ops writes a table of the ops");
    return simulate_one(options);
  }
  refuse(options.gantt || !options.trace.empty() || !options.ops.empty() || !options.report.empty() ||
             !options.compare_with.empty() || !options.explain.empty(),
         "--sweep predicts many runs: --gantt, --trace, --ops, --explain, --report and --compare-with show one");
  return simulate_sweep(options);
}

}  // namespace

Subcommand add_simulate_command(CLI::App& app, std::vector<std::string> arguments) {
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Predicts time, bubbles and memory of one iteration.\n\n"
      "Examples:\n"
      "  sluice simulate examples/llama3-8b-zbv-h100.json --gantt\n"
      "  sluice simulate examples/gpt3-175b-a100.json --schedule 1f1b --vpp 1 --trace timeline.json.gz\n"
      "  sluice simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1,comm=0.1 --json\n"
      "  sluice simulate --model examples/models/llama3-8b/config.json --cluster dgx-h100 --pp 4 --tp 2 --gbs 64 "
      "--seq-length 8192\n"
      "  sluice simulate --schedule auto --pp 8 --microbatches 32 --uniform f=10,b=12,w=8,comm=1 --memory-cap 4mb "
      "--time-budget 5\n"
      "  sluice simulate examples/gpt3-175b-a100.json --sweep vpp=1,2,3,6 --sweep mbs=1,2 --csv sweep.csv\n"
      "  sluice simulate examples/gpt3-175b-a100.json --slow-rank 7=1.1 --jitter lognormal:0.05 --trials 1000\n\n"
      "Exit codes: 0 done, 2 wrong input, 3 does not fit in memory (of auto: no schedule does), 4 invalid schedule");
  const auto options = std::make_shared<Options>();
  options->arguments = std::move(arguments);
  command->add_option("scenario", options->file, "scenario file (docs/formats.md); flags are laid over it");
  command->add_flag("--json", options->json, "one JSON document (sluice.simulation/1) on standard output");
  command->add_flag("--gantt", options->gantt, "draw the timeline as text");
  command->add_option("--width", options->width, "columns of the drawing (default: the terminal's)")
      ->check(CLI::Range(10, 100000));
  command->add_option("--color", options->colour, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  command->add_option("--trace", options->trace, "write a Chrome trace for Perfetto; gzipped if the name ends in .gz");
  command->add_option("--trace-ranks", options->trace_ranks, "only these pipeline ranks: a,b,c")->delimiter(',');
  command->add_flag("--trace-idle", options->trace_idle, "show idle time and its causes in the trace");
  command->add_option(
      "--ops", options->ops,
      "write a CSV with a row an op: times, slack, whether it is on the longest path, what it waited for");
  command->add_flag(
      "--explain", options->explain,
      "what the ops of each distinct stage, or of one (--explain=STAGE), are made of: each kernel's FLOPs, "
      "bytes, time, and what limits it");
  command
      ->add_option("--sweep", options->sweep,
                   "key=a,b,c: predict each value of a flag (pp, schedule, ...) or a place in the scenario "
                   "(parallelism/pp); repeated: all combinations")
      ->expected(1)
      ->take_all();
  command->add_option("--csv", options->csv, "write the sweep's table to this file");
  command->add_option("--svg", options->svg,
                      "write a figure: timeline and memory of the run; of a sweep, a curve over its first key");
  command->add_option("--svg-width", options->figure.width, "of the figure, in px (1/96 inch)")
      ->check(CLI::Range(240.0, 20000.0));
  command->add_flag("--svg-transfers", options->figure.transfers, "draw what moves between ranks in the figure");
  command->add_option("--report", options->report,
                      "write a page that shows all of it and needs nothing else: report.html");
  command->add_option(
      "--compare-with", options->compare_with,
      "a second run on the time axis of --report or --svg: a scenario file, or a family or auto for this scenario");
  options->flags = std::make_unique<ScenarioFlags>(*command);
  return {command, [options] { return simulate_command(*options); }};
}

}  // namespace sluice::tools
