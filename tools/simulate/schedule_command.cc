#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "model/errors.h"
#include "model/graph/graphviz.h"
#include "model/graph/lowering.h"
#include "model/input/files.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/schedule/with_communication.h"
#include "model/timeline/metrics.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/interrupt.h"
#include "tools/command/messages.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/simulate/schedule_check.h"
#include "tools/simulate/simulation_output.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

using namespace nlohmann::literals;

struct ScheduleOptions {
  std::string name;
  std::string output;
  bool json = false;
  bool check = false;
  bool communication = false;
  CheckOptions checks;
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
  fmt::print("{}: {}, {}, {}", schedule.family(), counted(schedule.num_ranks(), "rank", "s"),
             counted(schedule.num_stages(), "stage", "s"), counted(schedule.num_microbatches(), "microbatch", "es"));
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

// Prints all verdicts. Throws ScheduleError for the first that is an error.
int print_verdicts(const std::vector<ScheduleCheck>& verdicts, bool json) {
  const auto failed =
      std::find_if(verdicts.begin(), verdicts.end(), [](const ScheduleCheck& v) { return !v.good && !v.note; });
  const bool good = failed == verdicts.end();
  if (json) {
    fmt::print("{}", json_text(checks_document(verdicts)));
  } else {
    for (const ScheduleCheck& v : verdicts) fmt::print("{:<6}{:<33}{}\n", v.word(), v.check, v.detail);
  }
  if (good) return kDone;
  throw ScheduleError(failed->detail);
}

// Writes a checked schedule with sends and receives in one total order.
void write_repaired(const ScheduleOptions& options, const Schedule& schedule) {
  if (options.output.empty()) return;
  const Schedule repaired = with_receives(without_communication(schedule), Receives::early);
  const bool csv = options.output.ends_with(".csv");
  write_file_whole(options.output, csv ? schedule_to_csv(repaired, true) : schedule_to_json(repaired));
}

// Writes and prints the schedule as the options ask. `name` is for errors.
int write_schedule(const ScheduleOptions& options, Schedule schedule, const std::string& name) {
  if (options.checks.merge_backwards) schedule = with_merged_backwards(schedule);
  const OpGraph graph = lower_named(schedule, {}, name);  // throws for deadlocks
  const bool csv = options.output.ends_with(".csv");
  const bool adds = options.communication && !schedule.has_communication();
  const Schedule written = adds ? with_communication(schedule) : schedule;
  if (options.output.ends_with(".dot")) {
    std::ostringstream dot;
    write_dot(dot, graph);
    write_file_whole(options.output, dot.str());
  } else if (!options.output.empty()) {
    write_file_whole(options.output, csv ? schedule_to_csv(written, options.communication) : schedule_to_json(written));
  }
  if (options.json) {
    fmt::print("{}", schedule_to_json(written));
  } else {
    print_summary(schedule, graph);
  }
  return kDone;
}

int automatic_schedule(const ScheduleOptions& options, const Scenario& scenario) {
  const PlannedSetup planned = planned_until_interrupted(scenario);
  const Schedule& schedule = planned.setup->schedule();
  if (options.check) {
    std::vector<ScheduleCheck> verdicts;
    check_further(options.checks.merge_backwards ? with_merged_backwards(schedule) : schedule, kAutomatic,
                  options.checks, verdicts);
    write_repaired(options, schedule);
    return interrupted_or(print_verdicts(verdicts, options.json), planned);
  }
  print_message(assumed_times_line(scenario));
  const std::string line = automatic_line(*planned.automatic);
  if (options.json) {
    print_message(line);
  } else {
    fmt::print("{}\n", line);
  }
  return interrupted_or(write_schedule(options, schedule, kAutomatic), planned);
}

// Throws InputError for flags of checks without --check, and for a graph that --check cannot write.
void check_flags(const ScheduleOptions& options) {
  if (options.check && options.output.ends_with(".dot")) throw InputError("-o: --check writes .json or .csv");
  if (options.check) return;
  if (options.checks.any_communication) throw InputError("--communicators: needs --check");
  if (options.checks.wait != CheckOptions().wait) throw InputError("--wait: needs --check");
}

int schedule_command(const ScheduleOptions& options) {
  check_flags(options);
  const bool csv = options.output.ends_with(".csv");
  if (!options.output.empty() && !csv && !options.output.ends_with(".json") && !options.output.ends_with(".dot")) {
    throw InputError(fmt::format("-o: expected a name ending in .json, .csv or .dot, got '{}'", options.output));
  }
  nlohmann::json document = options.flags->document("");
  if (!options.name.empty() && options.name != kAutomatic && !names_file(options.name)) {
    static_cast<void>(find_family(options.name));  // whose error needs no place
  }
  if (options.name == kAutomatic) document["schedule"]["name"] = options.name;  // which enables its keys
  Scenario scenario = ScenarioFlags::read(document, "");
  if (!options.name.empty()) scenario.schedule = options.name;
  if (scenario.schedule == kAutomatic) return automatic_schedule(options, scenario);
  if (options.check) {
    const std::vector<ScheduleCheck> verdicts = check_schedule(scenario, options.checks);
    const bool whole = std::any_of(verdicts.begin(), verdicts.end(), [](const ScheduleCheck& v) { return v.verdict; });
    if (whole) write_repaired(options, make_schedule(scenario));
    return print_verdicts(verdicts, options.json);
  }
  if (csv && !names_file(scenario.schedule)) check_csv(find_family(scenario.schedule), scenario.shape.num_slices());
  return write_schedule(options, make_schedule(scenario), scenario.schedule);
}
// Adds an option whose values are the names of an enumeration, in its order.
template <typename Choice>
void add_choice(CLI::App& command, const std::string& flag, Choice& choice, const std::vector<std::string>& names,
                const std::string& help) {
  command
      .add_option_function<std::string>(
          flag,
          [&choice, names](const std::string& name) {
            choice = static_cast<Choice>(std::find(names.begin(), names.end(), name) - names.begin());
          },
          help)
      ->check(CLI::IsMember(names));
}

}  // namespace

Subcommand add_schedule_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "schedule",
      "Generate a schedule or read one from a file, check it, and write it as JSON or CSV.\n\n"
      "Examples:\n"
      "  sluice schedule zb-v --pp 4 --microbatches 8 -o zbv.json\n"
      "  sluice schedule interleaved-1f1b --pp 4 --vpp 2 --microbatches 8 --json\n"
      "  sluice schedule mine.json\n"
      "  sluice schedule auto --pp 8 --microbatches 32 --uniform f=10,b=12,w=8 --memory-cap 4mb -o auto.json\n"
      "  sluice schedule dualpipe-v --pp 4 --microbatches 8 -o dualpipev.csv\n"
      "  sluice schedule zb-h1 --pp 4 --microbatches 8 --communication -o zbh1_comms.csv\n"
      "  sluice schedule zbh1_comms.csv --check\n"
      "  sluice schedule zbh1_comms.csv --check --communicators pair --wait host\n\n"
      "--check prints one line per check. Errors are ops that are missing, duplicate or misplaced, deadlocks, sends "
      "and receives that do not match, and unbuffered communication that hangs, or swaps messages of one size, with "
      "the communicators of --communicators, or with all of them if it is not given. Notes report the communicators "
      "with which it hangs or swaps, and the cycle in which each waits for the next.");
  command->group("Schedules");
  command->footer(
      "Exit codes: 0 success, 2 wrong input, 4 invalid schedule, 130 interrupted, 143 ended by SIGTERM. The last two "
      "are "
      "of the search of auto, whose best schedule so far is written.");
  const auto options = std::make_shared<ScheduleOptions>();
  command->add_option("name", options->name,
                      "Schedule family ('sluice schedules' lists them), schedule file, or auto to search for one");
  add_output(*command, "-o,--output", options->output,
             "Write to this file: .json (sluice.schedule/1), .csv (PyTorch's format) or .dot (GraphViz); with --check, "
             "with sends and receives in an order that passes with all communicators");
  command->add_flag("--check", options->check, "Run all checks and print their results (default: off)");
  command->add_option_function<std::string>(
      "--communicators", [options](const std::string& text) { options->checks.read(text); },
      "With --check: the communicators of messages, each one queue per rank: one, direction (activations "
      "and gradients), pair (of ranks), edge (ordered pair of ranks), logical (ordered pair of stages), "
      "or a .json file (default: all but files); and, after commas, serialized (all communication of a GPU is one "
      "queue, "
      "as in captured CUDA graphs), batched (sends and receives with no op between them are one group), and for "
      "schedules "
      "without communication deferred (receives as with PyTorch's defer_pp_recv) or late (right before their use)");
  add_choice(*command, "--wait", options->checks.wait, {"device", "stream", "host"},
             "With --check: what communication waits for: device (its data), stream (also all compute before it, as in "
             "PyTorch), host (the rank blocks on each send and receive) (default: stream)");
  command->add_flag("--communication", options->communication,
                    "Write sends and receives too: those of the file, or else placed as PyTorch does (default: off)");
  command->add_flag("--merge-backward", options->checks.merge_backwards,
                    "Merge each I with a W that directly follows it into one B, as PyTorch does (default: off)");
  command->add_flag("--json", options->json, "Print the schedule as JSON");
  options->flags = std::make_unique<ScenarioFlags>(*command, kSchedule);
  return {command, [options] { return options->flags->naming_flags("", [&] { return schedule_command(*options); }); }};
}

}  // namespace sluice::tools
