#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "sim/prediction.h"
#include "tools/command.h"
#include "tools/scenario_flags.h"
#include "tools/simulation_output.h"
#include "tools/simulation_report.h"
#include "tools/terminal.h"
#include "traces/chrome_trace.h"
#include "traces/gantt.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string file;
  bool json = false;
  bool gantt = false;
  int width = 0;
  std::string trace;
  std::vector<int> trace_ranks;
  std::string colour = "auto";
  std::string report;
  std::string compare_with;
  std::vector<std::string> arguments;
  std::unique_ptr<ScenarioFlags> flags;
};

int simulate_command(const Options& options) {
  const Setup setup(options.flags->scenario(options.file));
  for (const int rank : options.trace_ranks) {
    if (rank < 0 || rank >= setup.schedule().num_ranks()) {
      throw InputError(
          fmt::format("--trace-ranks: expected ranks 0 to {}, got {}", setup.schedule().num_ranks() - 1, rank));
    }
  }
  const Prediction prediction = predict(setup, !options.trace.empty() || !options.report.empty());
  if (!options.trace.empty()) {
    TraceOptions trace{.ranks = options.trace_ranks, .scenario = options.flags->document(options.file).dump()};
    const std::string warning = trace_size_warning(count_trace_events(setup.graph(), prediction.memory, trace));
    if (!warning.empty()) fmt::print(stderr, "sluice: {}\n", warning);
    write_trace_file(options.trace, setup.graph(), prediction.timeline, prediction.memory, trace);
  }
  if (!options.report.empty()) {
    const auto document = options.flags->document(options.file);
    std::optional<SimulatedRun> second;
    if (!options.compare_with.empty()) second = second_run(options.compare_with, document, options.file);
    write_simulation_report(options.report, setup, prediction, scenario_text(document, options.file),
                            second ? &*second : nullptr, shell_line(options.arguments));
  }
  if (options.json) {
    fmt::print("{}", simulation_json(setup, prediction));
  } else {
    fmt::print("{}", simulation_table(setup, prediction));
    if (options.gantt) {
      GanttOptions gantt{.colour = terminal_colour(options.colour)};
      gantt.width = options.width > 0 ? options.width : terminal_columns(140) - 40;
      fmt::print("\n{}", text_gantt(setup.graph(), prediction.timeline, prediction.metrics, gantt));
    }
  }
  return prediction.fit && !prediction.fit->fits ? kAnswerIsNo : kDone;
}

}  // namespace

void add_simulate_command(CLI::App& app, int& exit_code, std::vector<std::string> arguments) {
  CLI::App* command = app.add_subcommand(
      "simulate",
      "Predicts time, bubbles and memory of one iteration.\n\n"
      "Examples:\n"
      "  sluice simulate examples/llama3-8b-zbv-h100.json --gantt\n"
      "  sluice simulate examples/gpt3-175b-a100.json --schedule 1f1b --vpp 1 --trace timeline.json.gz\n"
      "  sluice simulate --schedule 1f1b --pp 4 --microbatches 8 --uniform f=1,b=1,w=1,comm=0.1 --json\n"
      "  sluice simulate --model examples/models/llama3-8b/config.json --cluster dgx-h100 --pp 4 --tp 2 --gbs 64 "
      "--seq-length 8192\n\n"
      "Exit codes: 0 done, 2 wrong input, 3 does not fit in memory, 4 invalid schedule");
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
  command->add_option("--report", options->report,
                      "write a page that shows all of it and needs nothing else: report.html");
  command->add_option("--compare-with", options->compare_with,
                      "a second run on the report's time axis: a scenario file, or a family for this scenario");
  options->flags = std::make_unique<ScenarioFlags>(*command);
  command->callback([options, &exit_code] {
    if (options->json && options->gantt)
      throw InputError("simulate: --json prints one document: give it or --gantt, not both");
    if (!options->compare_with.empty() && options->report.empty())
      throw InputError("simulate: --compare-with adds a second run to a report: give --report too");
    exit_code = simulate_command(*options);
  });
}

}  // namespace sluice::tools
