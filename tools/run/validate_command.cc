#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "exec/measure/trial.h"
#include "model/cost/profile_fit.h"
#include "model/errors.h"
#include "model/scenario/scenario.h"
#include "model/schedule/family.h"
#include "model/timeline/memory.h"
#include "tools/command/command.h"
#include "tools/command/mpi_ranks.h"
#include "tools/command/progress.h"
#include "tools/run/profiling_flags.h"
#include "tools/run/run_flags.h"
#include "tools/run/run_place.h"
#include "tools/run/validation.h"
#include "tools/run/validation_output.h"
#include "traces/side_by_side.h"

namespace sluice::tools {
namespace {

struct Options {
  std::unique_ptr<RunFlags> flags;
  std::vector<std::string> schedules;
  ProfilingFlags profiling;
  std::string profile;
  std::string cost;
  int steps = 10;
  double tolerance = 10;
  double memory_tolerance = 5;
  RunPlaceFlags place;
  std::string trace;
  bool json = false;
};

// One schedule that is validated. Not movable, as its plan.
struct Case {
  Case(const RunFlags& flags, const RunPlace& place, const std::string& schedule, bool unsliced)
      : scenario(flags.scenario(schedule, unsliced)),
        plan(flags.spec(scenario, place.kernels()), flags.schedule(scenario, kBatches)),
        tokens(flags.tokens(plan)) {}

  static constexpr int kBatches = 8;  // of schedules without a flush, where nothing is said

  Scenario scenario;
  RunPlan plan;
  TokenSource tokens;
};

bool is_sliced(const std::string& schedule) { return names_file(schedule) || find_family(schedule).sliced; }

CostTable table_of(const Profile& profile, const RunPlan& plan) {
  ProfileChoice choice;
  choice.sequences = plan.schedule().shapes()[0].sequences;
  choice.tensor_parallel = plan.layout().tensor;
  ProfileFit fit = fit_profile(profile, choice);
  return std::move(fit.table);
}

// Of the files that were given; nothing if a profile is to be measured.
std::optional<CostTable> given_table(const Options& options, const RunPlan& plan) {
  if (!options.cost.empty()) return read_cost_table(options.cost);
  if (!options.profile.empty()) return table_of(read_profile(options.profile), plan);
  return std::nullopt;
}

TrialReport run(const std::deque<Case>& cases, const Options& options, const RunPlace& place, bool measures) {
  TrialSpec spec{.runs = options.steps, .devices = &place.devices()};
  for (const Case& each : cases) {
    spec.plans.push_back(&each.plan);
    spec.tokens.push_back(&each.tokens);
  }
  ProfilingSpec profiling;
  if (measures) {
    profiling = profiling_spec(spec.plans, options.profiling, place);
    spec.profiling = &profiling;
  }
  Progress progress("runs", options.steps * std::ssize(cases));
  const auto observer = [&](int done) { progress.done(done); };
  Transport* const transport = place.transport();
  TrialReport report = transport == nullptr ? run_trials_with_threads(spec, observer)
                                            : run_trials(spec, *transport, place.own_device(), observer);
  report.profile.source = "measured";
  report.profile.machine = place.machine(cases.front().plan.layout().size());
  return report;
}

void write_trace(const std::string& path, const Case& each, const Validation& validation) {
  const OpGraph& graph = each.plan.graph();
  const auto predicted_memory = memory_over_time(graph, validation.predicted, true);
  const auto measured_memory = memory_over_time(graph, validation.nearest, true);
  const RunRows predicted = rows_of(graph, validation.predicted, predicted_memory);
  const RunRows measured = rows_of(graph, validation.nearest, measured_memory);
  write_side_by_side_file(path, {TraceSide{"predicted", &predicted}, TraceSide{"measured", &measured}});
}

int validate_command(const Options& options) {
  if (!options.profile.empty() && !options.cost.empty()) {
    throw InputError("--profile and --cost: expected one of them, or neither, got both");
  }
  if (!options.trace.empty() && options.schedules.size() > 1) {
    throw InputError(
        fmt::format("--trace: holds one schedule's timelines, but --schedule has {}", options.schedules.size()));
  }
  const MpiRanks ranks;
  try {
    RunPlace place(options.place, ranks);
    std::deque<Case> cases;
    if (options.schedules.empty()) cases.emplace_back(*options.flags, place, "", false);
    // Of several schedules, slices are for those that can have them; of none that can, they are wrong.
    const bool any_sliced = std::any_of(options.schedules.begin(), options.schedules.end(), is_sliced);
    for (const std::string& schedule : options.schedules) {
      cases.emplace_back(*options.flags, place, schedule, any_sliced && !is_sliced(schedule));
    }
    const RunPlan& plan = cases.front().plan;
    for (const Case& each : cases) {
      if (each.plan.layout().size() == plan.layout().size()) continue;
      throw InputError(fmt::format("--schedule: {} and {} have different numbers of ranks: one set of them runs all",
                                   plan.schedule().family(), each.plan.schedule().family()));
    }
    place.open(plan.layout());
    std::optional<CostTable> table = given_table(options, plan);
    // What is wrong with a file is said before anything runs.
    for (const Case& each : cases) {
      if (table) static_cast<void>(predict(each.plan, *table));
    }
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    if (place.transport() == nullptr && place.kernels() == nullptr && cores > 0 && plan.layout().size() > cores) {
      fmt::print(stderr,
                 "sluice: {} workers share {} core{}: ops take less when other ranks wait, which no prediction knows\n",
                 plan.layout().size(), cores, cores == 1 ? "" : "s");
    }
    const TrialReport trials = run(cases, options, place, !table);
    if (!place.first()) return kDone;
    if (!table) table = table_of(trials.profile, plan);
    const Tolerances tolerances{options.tolerance / 100, options.memory_tolerance / 100};
    std::vector<Validation> validations;
    bool holds = true;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      validations.push_back(validate(cases[i].plan, *table, trials.plans[i]));
      holds = holds && tolerances.holds(validations.back());
    }
    if (!options.trace.empty()) write_trace(options.trace, cases.front(), validations.front());
    const ValidationHeading heading{.machine = place.machine(plan.layout().size()),
                                    .model = plan.spec().model.name,
                                    .precision = to_string(plan.spec().precision),
                                    .transport = place.transport_name(),
                                    .costs = !options.cost.empty()      ? options.cost
                                             : !options.profile.empty() ? options.profile
                                                                        : "measured"};
    if (options.json) {
      fmt::print("{}", validations_json(validations, heading, tolerances));
    } else {
      print_validations(validations, heading, tolerances);
    }
    return holds ? kDone : kOutsideTolerance;
  } catch (...) {
    if (is_first_process(ranks)) throw;
    return kWrongInput;  // the first rank says what is wrong
  }
}

}  // namespace

Subcommand add_validate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "validate",
      "Measures, predicts, really runs, and compares.\n\n"
      "Examples:\n"
      "  sluice validate\n"
      "  sluice validate --schedule gpipe,1f1b,seq1f1b,zb-h1 --slices 4\n"
      "  sluice validate --schedule zb-h1 --trace both.json.gz --json\n"
      "  sluice validate --cost cost.json --tolerance 15\n"
      "  mpirun -n 2 sluice validate --schedule 1f1b\n"
      "  sluice validate --backend cuda --devices green:4 --pp 4 --schedule 1f1b,zb-h1\n\n"
      "A profile of the model's ops is measured on this machine with as many ranks at work as will run (or read), "
      "costs "
      "are fitted to it, each schedule is simulated with them, and the same graph is then run, once to warm up and "
      "--steps times that count. Nothing of these runs is in the prediction. Differences are measured / predicted - 1; "
      "measured values are medians over the runs, peaks of memory the most of any.\n\n"
      "Exit codes: 0 within the tolerances, 2 wrong input, 3 not enough memory, 4 invalid schedule, 5 outside them");
  const auto options = std::make_shared<Options>();
  options->flags = std::make_unique<RunFlags>(*command, true);
  const char* kValidation = "Validation";
  command
      ->add_option(
          "--schedule", options->schedules,
          "families or files, comma-separated (default 1f1b): each is validated, with one profile; --slices is "
          "for those that cut sequences")
      ->delimiter(',')
      ->group(kValidation);
  command->add_option("--steps", options->steps, "runs of each that count (default 10)")
      ->check(CLI::Range(1, 1000000))
      ->group(kValidation);
  const auto of_percent = CLI::Range(0.0, 1e9);
  command
      ->add_option("--tolerance", options->tolerance,
                   "percent that the median makespan may be off by, either way (default 10)")
      ->check(of_percent)
      ->group(kValidation);
  command
      ->add_option("--memory-tolerance", options->memory_tolerance,
                   "percent that a rank's peak memory may be off by, either way (default 5)")
      ->check(of_percent)
      ->group(kValidation);
  command->add_option("--profile", options->profile, "take this profile instead of measuring one (sluice.profile/1)")
      ->group(kValidation);
  command->add_option("--cost", options->cost, "take this cost file instead of a profile (sluice.cost/1)")
      ->group(kValidation);
  options->place.add_to(*command, kValidation);
  command
      ->add_option("--trace", options->trace,
                   "write a Chrome trace of the predicted timeline and of the run nearest to the median (.json, .gz)")
      ->group(kValidation);
  command->add_flag("--json", options->json, "one JSON document (sluice.validation/1) on standard output")
      ->group(kValidation);
  options->profiling.add_to(*command);
  return {command, [options] { return validate_command(*options); }};
}

}  // namespace sluice::tools
