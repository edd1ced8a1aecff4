#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/scenario/scenario.h"
#include "model/timeline/causes.h"
#include "model/timeline/critical_path.h"
#include "sim/engine/predict.h"
#include "tools/analyze/analysis.h"
#include "tools/analyze/heat_maps.h"
#include "tools/analyze/profile_analysis.h"
#include "tools/analyze/timer_log.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/version.h"
#include "tools/simulate/simulation_report.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/figure/figure.h"
#include "traces/measured/drawn_step.h"
#include "traces/read/trace_read.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

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

// Writes the files. The report and the figure also have, if the run follows a family, its schedule simulated with the
// mean measured times of each stage. Returns a note about times that had to be moved, or an empty string. Throws
// InputError for a step or replica that the run does not have, naming the flag.
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

struct AnalyzeOptions {
  std::string timeline;
  std::string names;
  std::string heat_maps;
  std::string scenario;
  StepPictures pictures;
  bool json = false;
  bool all_steps = false;
  bool kernels = false;
  std::size_t top = 10;
  std::optional<int> gpus;
  std::optional<int> layers;
};

// Whether a file is a log: it begins neither as JSON of events nor as an archive. Lines of logs may begin with '['.
bool is_log(const std::vector<std::string>& files) {
  if (files.size() != 1 || !std::filesystem::is_regular_file(files[0])) return false;  // pipes are read once
  std::ifstream file(files[0], std::ios::binary);
  char first = 0;
  char second = 0;
  constexpr char kGzip = '\x1f';
  if (!(file >> first >> second) || first == '{' || first == kGzip) return false;
  return first != '[' || (second != '{' && second != '[' && second != ']');
}

// Refuses options that need ops of a pipeline, for an input that `has` something else.
void refuse_pipeline_options(const std::string& path, const AnalyzeOptions& options, const char* has) {
  for (const auto& [given, flag] : {std::pair(!options.names.empty(), "--names needs"),
                                    {!options.heat_maps.empty(), "--heat-maps needs"},
                                    {!options.scenario.empty(), "--scenario needs"},
                                    {options.gpus.has_value(), "--gpus needs"},
                                    {options.layers.has_value(), "--layers needs"},
                                    {options.pictures.any(), "--report, --svg and --trace need"}}) {
    if (given) throw InputError(fmt::format("{}: {} a timeline of a pipeline; {}", path, flag, has));
  }
}

int analyze_log(const std::string& path, const AnalyzeOptions& options) {
  refuse_pipeline_options(path, options, "a log has times per iteration");
  if (options.kernels) throw InputError(path + ": --kernels needs traces of PyTorch's profiler, got a log");
  const TimerAnalysis analysis = analyse_timers(read_megatron_log(path), options.all_steps);
  if (options.json) {
    fmt::print("{}", json_text(timers_document(analysis)));
  } else {
    fmt::print("{}", timers_text(analysis, options.top));
  }
  return kDone;
}

int analyze_kernels(std::vector<GpuTrace> traces, const AnalyzeOptions& options) {
  refuse_pipeline_options(options.timeline, options, "these traces have kernels only");
  const ProfileAnalysis analysis = analyse_profile(std::move(traces), options.all_steps);
  if (options.json) {
    fmt::print("{}", json_text(profile_document(analysis)));
  } else {
    fmt::print("{}", profile_text(analysis, options.top));
  }
  return kDone;
}

int analyze_command(const AnalyzeOptions& options) {
  if (!options.pictures.any() && (options.pictures.step || options.pictures.replica)) {
    throw InputError(
        fmt::format("{} needs --report, --svg or --trace", options.pictures.step ? "--step" : "--replica"));
  }
  const std::vector<std::string> files = trace_files(options.timeline);
  if (is_log(files)) return analyze_log(files[0], options);
  if (options.kernels && !options.names.empty()) throw InputError("--kernels excludes --names");
  const AnalysisRequest request{.timeline = options.timeline,
                                .names = options.names,
                                .all_steps = options.all_steps,
                                .gpus = options.gpus,
                                .layers = options.layers,
                                .kernels = options.kernels};
  MeasuredSteps steps = read_steps(request);
  if (!steps.profile.empty()) return analyze_kernels(std::move(steps.profile), options);
  if (options.kernels) throw InputError(options.timeline + ": --kernels needs traces of PyTorch's profiler");
  Analysis analysis = analyze(std::move(steps.run), request);
  if (!options.heat_maps.empty()) write_file_whole(options.heat_maps, heat_maps(analysis));
  if (!options.scenario.empty() && analysis.schedule.family.empty()) {
    print_message("--scenario: the schedule is none of the families; the scenario has 1f1b");
  }
  if (!options.scenario.empty()) write_file_whole(options.scenario, measured_scenario(analysis).dump(2) + "\n");
  if (options.pictures.any()) {
    const std::string note = write_step_pictures(options.pictures, analysis);
    if (!note.empty()) analysis.run.notes.push_back(note);
  }
  if (options.json) {
    fmt::print("{}", json_text(analysis_document(analysis)));
  } else {
    fmt::print("{}", analysis_text(analysis, options.top));
  }
  return kDone;
}

}  // namespace

Subcommand add_analyze_command(CLI::App& app, const std::vector<std::string>& arguments) {
  CLI::App* command = app.add_subcommand(
      "analyze",
      "Find out why measured training steps were slow.\n\n"
      "Examples:\n"
      "  sluice analyze timeline.json.gz\n"
      "  sluice analyze pytorch_traces/\n"
      "  sluice analyze pp_logs/ --gpus 64 --layers 80 --heat-maps heat.svg\n"
      "  sluice analyze traces/ --names names.json --json\n"
      "  sluice analyze timeline.json.gz --report step.html --step 12 --replica 3\n"
      "  sluice analyze timeline.json.gz --scenario measured.json && sluice simulate measured.json --schedule zb-h1\n\n"
      "Prints first what costs most seconds per step, with remedies and what a replay of the steps with each of them "
      "gains.\n\n"
      "Reads ops of pipelines: timelines of ByteDance's StragglerAnalysis, folders of AMD Primus's pipeline logs "
      "(pp_rank_N.json), Chrome traces with other names of ops (--names), traces of sluice and of PyTorch's "
      "pipelining. "
      "It recognises the schedule, and prints the slowdown against ideal steps by replica, rank and kind.\n\n"
      "Reads kernels: traces of PyTorch's profiler (Kineto), a file per rank, without ranges of a pipeline or with "
      "--kernels. It prints compute, exposed and hidden communication, copies and idle time per rank, kernels by time, "
      "and, with several ranks, the waits in collectives, sends and receives.\n\n"
      "Reads logs of Megatron-LM with timers (--timing-log-level 2 --timing-log-option all), which name slow ranks "
      "only.");
  command->group("Predict and plan");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto options = std::make_shared<AnalyzeOptions>();
  options->pictures.command_line = shell_line(arguments);
  command
      ->add_option("timeline", options->timeline,
                   "Timeline: a file, a folder, or files separated by commas; or a log of Megatron-LM")
      ->required();
  command
      ->add_option("--names", options->names,
                   "Names of the ops in the timeline (sluice.names/1; default: those of ByteDance's timelines)")
      ->type_name(kReadFile);
  command
      ->add_option("--gpus", options->gpus,
                   "GPUs of the job, for GPU hours, 1 to 1000000 (default: the recorded workers)")
      ->check(CLI::Range(1, 1000000));
  command
      ->add_option(
          "--layers", options->layers,
          "Layers of the model, 1 to 1000000, to name the layers to move and for the step with one layer less on the "
          "last stage (default: not set)")
      ->check(CLI::Range(1, 1000000));
  command
      ->add_option("--top", options->top,
                   "Number of causes, replicas, ranks and kernels to list, 1 to 1000000 (default 10)")
      ->check(CLI::Range(1, 1000000));
  command->add_flag("--all-steps", options->all_steps,
                    "Keep the first step even if it took over 1.5 times the median step, as warm-ups do");
  command->add_flag("--kernels", options->kernels,
                    "Analyze the kernels of PyTorch traces even if these have ranges of a pipeline");
  command->add_flag(
      "--json", options->json,
      "Print one JSON document (sluice.analysis/1; sluice.profile/1 for kernels, sluice.timers/1 for logs)");
  add_output(*command, "--heat-maps", options->heat_maps,
             "Write the times of the passes by rank, replica and step to an SVG file");
  add_output(*command, "--report", options->pictures.report,
             "Write one step, and its schedule simulated with the mean times, to a self-contained HTML report");
  add_output(*command, "--svg", options->pictures.svg, "Write the timeline of that step and the simulated one as SVG");
  add_output(*command, "--trace", options->pictures.trace,
             "Write the timeline of that step and its idle time as a Chrome trace (.json or .gz)");
  command->add_option("--step", options->pictures.step,
                      "Step to draw, by its number in the files (default: the one with the median time)");
  command->add_option("--replica", options->pictures.replica, "Data-parallel replica to draw, from 0 (default 0)")
      ->check(CLI::Range(0, 1000000));
  add_output(*command, "--scenario", options->scenario,
             "Write a scenario with the measured times as costs, for 'sluice simulate' with other schedules");
  return {command, [options] { return analyze_command(*options); }};
}

}  // namespace sluice::tools
