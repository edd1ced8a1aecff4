#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "sim/engine/predict.h"
#include "sim/engine/shortened.h"
#include "sim/planner/auto_setup.h"
#include "tools/command/assumptions.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/interrupt.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/simulate/batch_output.h"
#include "tools/simulate/explain_output.h"
#include "tools/simulate/live_page.h"
#include "tools/simulate/report_run.h"
#include "tools/simulate/schedule_comparison.h"
#include "tools/simulate/simulation_output.h"
#include "tools/simulate/simulation_report.h"
#include "tools/simulate/sweep.h"
#include "traces/chakra/chakra_trace.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/figure/curve.h"
#include "traces/figure/figure.h"
#include "traces/text/gantt.h"
#include "traces/text/op_table.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view(value);
}

// Returns the width of the terminal on standard output in columns, or `fallback` if it is not a terminal.
int terminal_columns(int fallback) {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return fallback;
  return size.ws_col;
}

// Returns the color mode of standard output for `--color auto|always|never`. "auto" enables color on a terminal, unless
// NO_COLOR is set or TERM is dumb.
TextColour terminal_colour(const std::string& mode) {
  const bool off = !environment("NO_COLOR").empty() || environment("TERM") == "dumb" || ::isatty(STDOUT_FILENO) == 0;
  if (mode == "never" || (mode == "auto" && off)) return TextColour::none;
  const std::string_view depth = environment("COLORTERM");
  return depth == "truecolor" || depth == "24bit" ? TextColour::truecolor : TextColour::ansi256;
}

struct SimulateOptions {
  std::string file;
  bool json = false;
  bool gantt = false;
  int width = 0;
  std::string trace;
  std::vector<int> trace_ranks;
  bool trace_idle = false;
  std::string chakra;
  std::string ops;
  std::string explain;         // a stage, "true" for all distinct stages, or empty
  std::string explain_memory;  // a rank, "true" for that with the highest peak, or empty
  std::string csv;
  std::vector<std::string> sweep;
  std::string colour = "auto";
  std::string svg;
  std::optional<double> svg_width;  // px; by default that of the kind of figure
  bool svg_no_memory = false;
  FigureOptions figure;  // without these two
  std::string report;
  bool live = false;
  std::vector<std::string> compare_with;
  std::vector<std::string> arguments;
  std::unique_ptr<ScenarioFlags> flags;
};

// Returns the scenario of the run. If --compare-with has auto, the flags of the search apply to that run; if it has a
// family, what the first run leaves open is chosen for its schedule too. Sets `interrupted` if a signal ended that.
nlohmann::json run_document(const SimulateOptions& options, bool& interrupted) {
  nlohmann::json document = options.flags->document(options.file);
  const auto any = [&](const auto& holds) {
    return std::any_of(options.compare_with.begin(), options.compare_with.end(), holds);
  };
  const auto is_auto = [](const std::string& word) { return word == kAutomatic; };
  if (any(is_auto)) ScenarioFlags::drop_automatic_keys(document);
  if (!any([&](const std::string& word) { return !is_auto(word) && !compares_with_file(word); })) return document;
  const Interrupt interrupt;
  ScenarioFlags::Adapted own;
  const nlohmann::json given = document;
  const auto read = [&](const nlohmann::json& each) { return ScenarioFlags::read(each, options.file); };
  choose_own_best(document, given, {}, read, own, interrupt.flag());
  if (!own.changes.empty()) {
    print_message(fmt::format("--compare-with: first run: {}", fmt::join(own.changes, ", ")));
  }
  interrupted = interrupt.came();
  return document;
}

void write_trace(const SimulateOptions& options, const nlohmann::json& document, const Setup& setup,
                 const Prediction& prediction) {
  const TraceOptions trace{.ranks = options.trace_ranks,
                           .scenario = document.dump(),
                           .parts = part_rows(setup.graph(), setup.cost(), prediction.timeline),
                           .idle = options.trace_idle};
  const std::string warning =
      trace_size_warning(count_trace_events(setup.graph(), prediction.timeline, prediction.memory, trace));
  print_message(warning);
  write_trace_file(options.trace, setup.graph(), prediction.timeline, prediction.memory, trace);
}

// Returns the runs of --compare-with, and prints what was changed for them.
std::vector<OtherRun> other_runs(const SimulateOptions& options) {
  const Interrupt interrupt;
  std::vector<OtherRun> out =
      compared_runs(options.compare_with, options.flags->document(options.file), options.file, interrupt.flag());
  for (const OtherRun& other : out) {
    if (!other.simulated()) continue;
    print_message(calibration_warning(other.run.setup->scenario()));
    if (const auto& changes = other.run.adapted.changes; !changes.empty()) {
      print_message(fmt::format("--compare-with {}: {}", other.word, fmt::join(changes, ", ")));
    }
    for (const std::string& each : other.run.adapted.inherited) {
      print_message(fmt::format("--compare-with {}: inherits {}", other.word, each));
    }
  }
  return out;
}

// Writes the figure and the report of one run or several.
void write_pictures(const SimulateOptions& options, const nlohmann::json& document, const Setup& setup,
                    const Prediction& prediction, const std::vector<OtherRun>& others) {
  if (!options.svg.empty()) {
    std::vector<DrawnRun> runs = {drawn_run(setup, prediction)};
    for (const OtherRun& other : others) {
      if (other.simulated()) runs.push_back(drawn_run(*other.run.setup, other.run.prediction));
    }
    FigureOptions figure = options.figure;
    figure.width = options.svg_width.value_or(figure.width);
    figure.memory = !options.svg_no_memory;
    write_file_whole(options.svg, svg_figure(runs, figure));
  }
  if (!options.report.empty()) {
    const bool own = !options.file.empty() && !ScenarioFlags::is_imported(options.file);
    const std::string text = own ? ScenarioFlags::file_text(options.file) : "";
    std::optional<LivePage> live;
    if (options.live) {
      live = live_page(setup, prediction, document, ScenarioFlags::folder_of(options.file));
    }
    write_simulation_report(options.report, setup, prediction, scenario_text(document, text), others, std::move(live),
                            shell_line(options.arguments));
  }
}

// Whether all results are sums and peaks of a run, for which not every op is needed. (The parts of ops with experts are
// counted in the graph.)
bool without_ops(const SimulateOptions& options, const Scenario& scenario) {
  const bool files = !options.trace.empty() || !options.chakra.empty() || !options.ops.empty() ||
                     !options.svg.empty() || !options.report.empty();
  return !files && !options.gantt && options.explain_memory.empty() && scenario.training.ep == 1;
}

// Returns the timelines of the run and of those that it is compared with, on one time axis.
std::string gantt_text(const SimulateOptions& options, const Setup& setup, const Prediction& prediction,
                       const std::vector<OtherRun>& others) {
  GanttOptions gantt{.colour = terminal_colour(options.colour)};
  gantt.width = options.width > 0 ? options.width : terminal_columns(140) - 40;
  std::vector<GanttRun> runs;
  const auto add = [&](const Setup& of, const Prediction& predicted) {
    runs.push_back({.title = others.empty() ? "" : run_title(of),
                    .graph = &of.graph(),
                    .timeline = &predicted.timeline,
                    .metrics = &predicted.metrics,
                    .parts = part_rows(of.graph(), of.cost(), predicted.timeline)});
  };
  add(setup, prediction);
  for (const OtherRun& other : others) {
    if (other.simulated()) add(*other.run.setup, other.run.prediction);
  }
  return text_gantt(runs, gantt);
}

std::string encoder_text(const EncoderRun& run) {
  return fmt::format("  encoder in bubbles: {}, in phases {} ({} simulated)\n", time_text(run.makespan),
                     time_text(run.in_phases), counted(run.schedules, "schedule", "s"));
}

int simulate_one(const SimulateOptions& options) {
  bool interrupted = false;
  const nlohmann::json document = run_document(options, interrupted);
  const Scenario scenario = ScenarioFlags::read(document, options.file);
  if (options.live && scenario.documents) throw InputError("--live has no lengths of documents (--lengths)");
  std::optional<ShortenedPrediction> brief;
  if (without_ops(options, scenario)) brief = predict_shortened(scenario);
  PlannedSetup planned;
  if (brief) planned.setup = std::move(brief->setup);
  if (!brief) planned = planned_until_interrupted(scenario);
  ScenarioFlags::print_notes(options.file);
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
  const PredictOptions predict_options{.keep_memory = pictures || !options.trace.empty(),
                                       .trial_progress = [&](std::int64_t done) { progress.done(done); }};
  Prediction prediction = brief ? std::move(brief->prediction) : predict(setup, predict_options);
  if (planned.batch) fit_all_replicas(scenario, *planned.batch, prediction);
  std::optional<ExplainedMemory> memory;
  if (!options.explain_memory.empty()) {
    memory = explained_memory(setup, prediction, options.explain_memory == "true" ? "most" : options.explain_memory);
  }
  const std::vector<OtherRun> others = other_runs(options);  // all files are read before one is written
  for (const OtherRun& other : others) interrupted = interrupted || other.run.interrupted;
  if (!options.trace.empty()) write_trace(options, document, setup, prediction);
  if (!options.chakra.empty()) {
    const Training& training = setup.scenario().training;
    write_chakra_traces(options.chakra, setup.graph(), prediction.timeline,
                        {.replicas = training.dp,
                         .shards_optimizer = training.distributed_optimizer || training.zero_stage() > 0,
                         .scenario = document.dump()});
  }
  if (!options.ops.empty()) {
    write_file_whole(options.ops,
                     [&](const ByteSink& sink) { write_op_table(sink, setup.graph(), prediction.timeline); });
  }
  if (pictures) write_pictures(options, document, setup, prediction, others);
  print_message(calibration_warning(setup.scenario()));
  std::vector<const Setup*> runs = {&setup};
  for (const OtherRun& other : others) {
    if (other.simulated()) runs.push_back(other.run.setup.get());
  }
  print_message(unused_times_line(runs));
  const bool fits = !prediction.fit || prediction.fit->fits;
  std::vector<Remedy> remedies;
  if (!fits && !planned.batch && fit_advice_is_quick(setup)) {
    remedies = what_would_fit(setup);
  } else if (!fits && !planned.batch) {
    print_message(
        fmt::format("the graph has {} vertices, too many to search for configurations that fit", setup.graph().size()));
  }
  OrderedJson results = simulation_json(setup, prediction, explained, memory, remedies, automatic);
  const PredictedScenario of{setup.scenario(), document, kSimulate, has_joint_blocks(setup.schedule())};
  if (planned.batch) results["documents"] = batch_json(setup.scenario(), *planned.batch);
  if (planned.encoder) {
    results["encoder"] = {{"in_phases_s", to_seconds(planned.encoder->in_phases)},
                          {"schedules", planned.encoder->schedules}};
  }
  add_assumptions(results, of);
  if (!others.empty()) results["comparison"] = comparison_json(setup, prediction, others);
  if (options.json) {
    fmt::print("{}", json_text(results, ScenarioFlags::effective(document)));
  } else {
    fmt::print("{}{}{}{}", simulation_text(setup, prediction, results, automatic),
               planned.batch ? batch_text(results["documents"]) : "",
               planned.encoder ? encoder_text(*planned.encoder) : "", assumptions_text(of));
    if (!explained.empty()) fmt::print("{}", explain_text(setup, explained));
    if (!explained.empty() && !prediction.repetition) {
      fmt::print("\nEvery op of all {} microbatches was simulated.\n", setup.schedule().num_microbatches());
    }
    if (memory) fmt::print("{}", explain_memory_text(setup, prediction, *memory));
    if (options.gantt) fmt::print("\n{}", gantt_text(options, setup, prediction, others));
    if (!others.empty()) fmt::print("\n{}", comparison_table(results["comparison"]));
  }
  if (interrupted) return Interrupt::exit_code();
  return interrupted_or(fits ? kDone : kNotFeasible, planned);
}

// Returns exit code 3 if no combination fits, and that of a signal that came before all were predicted. Throws the
// first error if no combination can be simulated.
int simulate_sweep(const SimulateOptions& options) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : options.sweep) axes.push_back(parse_sweep_axis(text));
  const Interrupt interrupt;
  const Sweep sweep = run_sweep(options.flags->document(options.file), options.file, std::move(axes), interrupt.flag());
  const bool interrupted = interrupt.came();
  ScenarioFlags::print_notes(options.file);
  bool any = false;
  bool any_fits = false;
  for (const SweepPoint& point : sweep.points) {
    any |= point.has_result();
    any_fits |= point.has_result() && point.fits();
  }
  if (!any && interrupted) return Interrupt::exit_code();
  if (!any)
    throw InputError("--sweep: no combination can be simulated; the first error: " + sweep.points.front().error);
  const auto warned = std::find_if(sweep.points.begin(), sweep.points.end(),
                                   [](const SweepPoint& point) { return !point.warning.empty(); });
  if (warned != sweep.points.end()) print_message(warned->warning);
  if (!options.csv.empty()) write_file_whole(options.csv, sweep_csv(sweep));
  if (!options.svg.empty()) {
    CurveChart chart = sweep_chart(sweep);
    if (options.figure.title) chart.title = *options.figure.title;
    write_file_whole(options.svg, options.svg_width ? svg_curve(chart, *options.svg_width) : svg_curve(chart));
  }
  fmt::print("{}", options.json ? json_text(sweep_json(sweep)) : sweep_table(sweep));
  if (interrupted) return Interrupt::exit_code();
  return any_fits ? kDone : kNotFeasible;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

int simulate_command(const SimulateOptions& options) {
  const auto refuse = [](bool given, const char* rule) {
    if (given) throw InputError(fmt::format("simulate: {}", rule));
  };
  refuse(options.explain == "true" && is_number(options.file),
         "--explain: write the stage after '=', as in --explain=0");
  refuse(options.explain_memory == "true" && is_number(options.file),
         "--explain-memory: write the rank after '=', as in --explain-memory=0");
  refuse(options.json && options.gantt, "--json and --gantt exclude each other");
  refuse(options.trace.empty() && options.trace_idle, "--trace-idle needs --trace");
  refuse(options.live && options.report.empty(), "--live needs --report");
  refuse(options.live && !options.compare_with.empty(), "--live and --compare-with exclude each other");
  if (options.live) require_live_engine();
  for (const auto& [given, rule] : {std::pair(options.figure.transfers, "--svg-transfers needs --svg"),
                                    {options.svg_no_memory, "--svg-no-memory needs --svg"},
                                    {options.figure.title.has_value(), "--svg-title needs --svg"},
                                    {options.svg_width.has_value(), "--svg-width needs --svg"}}) {
    refuse(given && options.svg.empty(), rule);
  }
  if (options.sweep.empty()) {
    refuse(!options.csv.empty(), "--csv needs --sweep; --ops writes a table of the ops");
    return simulate_one(options);
  }
  refuse(options.figure.transfers || options.svg_no_memory,
         "--sweep excludes --svg-transfers and --svg-no-memory, which are for the figure of one run");
  refuse(options.gantt || !options.trace.empty() || !options.chakra.empty() || !options.ops.empty() ||
             !options.report.empty() || !options.compare_with.empty() || !options.explain.empty() ||
             !options.explain_memory.empty(),
         "--sweep excludes --gantt, --trace, --chakra, --ops, --explain, --explain-memory, --report and "
         "--compare-with, which "
         "show one run");
  return simulate_sweep(options);
}

void add_figure_flags(CLI::App& command, SimulateOptions& options) {
  command
      .add_option("--svg-width", options.svg_width,
                  fmt::format("Width of the figure in px (1/96 inch), 240 to 20000 (default {}; with --sweep {})",
                              FigureOptions{}.width, kCurveWidth))
      ->check(number_from(240, 20000));
  command.add_option_function<std::string>(
      "--svg-title", [&options](const std::string& text) { options.figure.title = text; },
      "Title of the figure in place of the run's; with --compare-with above those of the runs; \"\": "
      "no titles and results (default: the schedule and its size)");
  command.add_flag("--svg-no-memory", options.svg_no_memory,
                   "Leave the memory over time out of the figure (default: drawn)");
  command.add_flag("--svg-transfers", options.figure.transfers,
                   "Draw point-to-point transfers in the figure (default: off)");
}

}  // namespace

Subcommand add_simulate_command(CLI::App& app, std::vector<std::string> arguments) {
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Predict the time, bubbles and memory of one training iteration.\n\n"
      "Examples:\n"
      "  sluice simulate examples/llama3-8b-zbv-h100.json --gantt\n"
      "  sluice simulate examples/gpt3-175b-a100.json --schedule 1f1b --vpp 1 --trace timeline.json.gz\n"
      "  sluice simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1,comm=0.1 --json\n"
      "  sluice simulate --model llama3-8b --cluster dgx-h100 \\\n"
      "      --pp 4 --tp 2 --gbs 64 --seq-length 8192\n"
      "  sluice simulate --schedule auto --pp 8 --microbatches 32 --uniform f=10,b=12,w=8,comm=1 \\\n"
      "      --memory-cap 4mb --evaluations 100000\n"
      "  sluice simulate examples/gpt3-175b-a100.json --sweep vpp=1,2,3,6 --sweep mbs=1,2 --csv sweep.csv\n"
      "  sluice simulate examples/gpt3-175b-a100.json --slow-rank 7=1.1 --jitter lognormal:0.05\n\n"
      "The scenario is a file, flags, or both; flags override the file.");
  command->group("Predict and plan");
  command->footer(
      "Exit codes: 0 success, 2 wrong input, 3 does not fit in memory (with --schedule auto: no schedule fits), "
      "4 invalid schedule, 130 interrupted, 143 ended by SIGTERM. With --schedule auto, the last two print the best so "
      "far, with --sweep the combinations that are predicted.");
  const auto options = std::make_shared<SimulateOptions>();
  options->arguments = std::move(arguments);
  command->add_option("scenario", options->file, "Scenario file (docs/formats.md); flags override its keys");
  command->add_flag("--json", options->json, "Print one JSON document (sluice.simulation/1)");
  command->add_flag("--gantt", options->gantt, "Print the timeline as a text Gantt chart");
  command
      ->add_option("--width", options->width,
                   "Width of the Gantt chart in columns, 10 to 100000 (default: the terminal's)")
      ->check(CLI::Range(10, 100000));
  command->add_option("--color", options->colour, "When to color the Gantt chart (default: auto)")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  add_output(*command, "--trace", options->trace,
             "Write a Chrome trace for Perfetto to this file; gzipped if the name ends in .gz");
  command
      ->add_option("--trace-ranks", options->trace_ranks,
                   "Pipeline ranks that the trace holds, as a,b,c (default: all)")
      ->delimiter(',');
  command
      ->add_option("--chakra", options->chakra,
                   "Write execution traces for ASTRA-sim and SimAI: PREFIX.N.et of each pipeline rank and replica, and "
                   "PREFIX.comm_groups.json")
      ->type_name("PREFIX");
  command->add_flag("--trace-idle", options->trace_idle, "Add idle time and its causes to the trace (default: off)");
  add_output(*command, "--ops", options->ops,
             "Write a CSV file with one row per op: times, slack, critical path, and the cause of its wait");
  command->add_flag("--explain", options->explain,
                    "Print the kernels of each distinct stage, or of one (--explain=STAGE): FLOPs, bytes, time and "
                    "the limiting resource");
  command->add_flag("--explain-memory", options->explain_memory,
                    "Print the tensors that the rank with the highest peak, or another (--explain-memory=RANK), holds "
                    "at its peak, with their formulas");
  command
      ->add_option("--sweep", options->sweep,
                   "KEY=a,b,c: predict each value of a flag (pp, schedule, ...) or scenario key (parallelism/pp); "
                   "repeat for all combinations. Over schedules, what is not specified is chosen for each, as with "
                   "--compare-with")
      ->expected(1)
      ->take_all();
  add_output(*command, "--csv", options->csv, "Write the table of the sweep to this CSV file");
  add_output(*command, "--svg", options->svg,
             "Write a figure to this file: timeline and memory, or with --sweep a curve over its first key");
  add_figure_flags(*command, *options);
  add_output(*command, "--report", options->report, "Write a self-contained HTML report to this file");
  command->add_flag(
      "--live", options->live,
      "Make the report live: it carries the engine and simulates again as its reader changes the schedule, "
      "sizes and times (needs a build with Emscripten; default: off)");
  command
      ->add_option("--compare-with", options->compare_with,
                   "Compare with the runs of schedule families (or auto) for this scenario, and of scenario files: a "
                   "table, and with --gantt, --svg and --report the timelines on one axis. For families, chunks and "
                   "layers per stage that no flag sets, and slices, are chosen for each, with the analytic cost model")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name(kNameOrFile);
  for (const char* rare :
       {"--width", "--color", "--ops", "--trace-ranks", "--trace-idle", "--chakra", "--explain-memory", "--svg-width",
        "--svg-title", "--svg-no-memory", "--svg-transfers", "--live"}) {
    command->get_option(rare)->group(kRareGroup);
  }
  options->flags = std::make_unique<ScenarioFlags>(*command, kSimulate);
  ScenarioFlags::add_imports(*command, options->file);
  return {command, [options] {
            return options->flags->naming_flags(options->file, [&] { return simulate_command(*options); });
          }};
}

}  // namespace sluice::tools
