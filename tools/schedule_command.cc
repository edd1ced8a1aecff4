#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/errors.h"
#include "model/graph/lowering.h"
#include "model/input/files.h"
#include "model/scenario/setup.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/timeline/metrics.h"
#include "tools/command.h"
#include "tools/scenario_flags.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string name;
  std::string output;
  bool json = false;
  std::unique_ptr<ScenarioFlags> flags;
};

std::string rank_line(const Schedule& schedule, int rank) {
  constexpr int kMostOps = 60;
  std::string out;
  int count = 0;
  bool joined = false;
  for (const Op& op : schedule.ops(rank)) {
    if (++count > kMostOps && !joined) {
      fmt::format_to(std::back_inserter(out), " ... ({} ops)", schedule.ops(rank).size());
      break;
    }
    fmt::format_to(std::back_inserter(out), "{}{}{}{}", joined ? "+" : " ", op.stage, letter(op.kind), op.microbatch);
    if (schedule.sliced()) fmt::format_to(std::back_inserter(out), ".{}", op.slice);
    joined = op.joined;
  }
  return out;
}

void print_summary(const Schedule& schedule, const OpGraph& graph) {
  fmt::print("{}: {} ranks, {} stages, {} microbatches", schedule.family(), schedule.num_ranks(), schedule.num_stages(),
             schedule.num_microbatches());
  if (schedule.num_batches() > 1) fmt::print(" x {} batches", schedule.num_batches());
  if (schedule.sliced()) fmt::print(" x {} slices", schedule.max_slices());
  fmt::print("; {} ops, {} graph vertices, {} edges; complete, no deadlock\n", schedule.num_ops(), graph.size(),
             graph.num_edges());
  constexpr int kMostRows = 32;
  for (int rank = 0; rank < std::min(schedule.num_ranks(), kMostRows); ++rank) {
    fmt::print("rank {} (stages {}; peak {:.4g} in flight):{}\n", rank, fmt::join(schedule.stages_of(rank), ", "),
               peak_in_flight(schedule, rank), rank_line(schedule, rank));
  }
  if (schedule.num_ranks() > kMostRows) fmt::print("... ({} ranks)\n", schedule.num_ranks());
}

int schedule_command(const Options& options) {
  const bool csv = options.output.ends_with(".csv");
  if (!options.output.empty() && !csv && !options.output.ends_with(".json")) {
    throw InputError(fmt::format("-o: expected a name ending in .json or .csv, got '{}'", options.output));
  }
  Scenario scenario = options.flags->scenario("");
  if (!options.name.empty()) scenario.schedule = options.name;
  const Schedule schedule = make_schedule(scenario);
  const OpGraph graph = lower(schedule);  // finds deadlocks
  if (!options.output.empty()) {
    write_file_whole(options.output, csv ? schedule_to_csv(schedule) : schedule_to_json(schedule));
  }
  if (options.json) {
    fmt::print("{}", schedule_to_json(schedule));
  } else {
    print_summary(schedule, graph);
  }
  return kDone;
}

}  // namespace

void add_schedule_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("schedule",
                         "Makes a schedule of a family, or reads one from a file, and checks it: every op once, on "
                         "its rank, no deadlock.\n\n"
                         "Examples:\n"
                         "  sluice schedule zb-v --pp 4 --microbatches 8 -o zbv.json\n"
                         "  sluice schedule interleaved-1f1b --pp 4 --vpp 2 --microbatches 8 --json\n"
                         "  sluice schedule mine.json\n"
                         "  sluice schedule dualpipe-v --pp 4 --microbatches 8 -o dualpipev.csv");
  const auto options = std::make_shared<Options>();
  command->add_option("name", options->name, "a family ('sluice schedules' lists them), or a schedule file");
  command->add_option("-o,--output", options->output,
                      "write it to this file: .json (sluice.schedule/1) or .csv (PyTorch's, compute only)");
  command->add_flag("--json", options->json, "the schedule itself as JSON on standard output");
  options->flags = std::make_unique<ScenarioFlags>(*command);
  command->callback([options, &exit_code] { exit_code = schedule_command(*options); });
}

}  // namespace sluice::tools
