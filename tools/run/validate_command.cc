#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/measure/trial.h"
#include "exec/run/core_wait.h"
#include "exec/watch/watchdog.h"
#include "model/cost/profile_fit.h"
#include "model/errors.h"
#include "model/scenario/scenario.h"
#include "model/schedule/family.h"
#include "model/timeline/memory.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/mpi_ranks.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/run/run_flags.h"
#include "tools/run/run_place.h"
#include "tools/run/run_watch.h"
#include "tools/run/validation.h"
#include "traces/chrome/side_by_side.h"

namespace sluice::tools {
namespace {

enum class Verdict { within, outside, none };

// Maximum relative errors. Schedules outside are marked and set the exit code.
struct Tolerances {
  double makespan = 0.1;
  double memory = 0.05;

  // Returns `none` for a validation that is not calm.
  Verdict verdict(const Validation& validation) const;
};

// The setting of a validation, for the heading and the JSON document.
struct ValidationHeading {
  std::string machine;
  std::string model;
  std::string precision;
  std::string transport;
  std::string costs;  // "measured" or the name of a file
};

using OrderedJson = nlohmann::ordered_json;

std::string ms(double seconds) { return fmt::format("{:.2f}", 1e3 * seconds); }
std::string mib(std::int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / (1024.0 * 1024.0)); }
std::string percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }
std::string signed_percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

double difference(double predicted, double measured) { return predicted > 0 ? measured / predicted - 1 : 0; }

constexpr std::array kMarks = {"", "  outside tolerance", "  machine busy: no verdict"};  // by Verdict

void print_validation_summary(std::span<const Validation> validations, const Tolerances& tolerances) {
  fmt::print("{:<18} {:>10} {:>10} {:>21} {:>9}  {:>16}  {:>17}\n", "schedule", "predicted", "measured", "min to max",
             "error", "bubble", "peak memory error");
  for (const Validation& of : validations) {
    const auto [least, most] = std::minmax_element(of.measured_s.begin(), of.measured_s.end());
    fmt::print("{:<18} {:>7} ms {:>7} ms {:>21} {:>9}  {:>7}, {:>7}  {:>17}{}\n", of.schedule, ms(of.predicted_s),
               ms(of.median_s()), ms(*least) + " to " + ms(*most), signed_percent(of.makespan_difference()),
               percent(of.bubble_fraction.first), percent(of.bubble_fraction.second),
               signed_percent(of.memory_difference()), kMarks[static_cast<std::size_t>(tolerances.verdict(of))]);
  }
}

void print_validation_details(const Validation& of) {
  fmt::print("\n{:<12} {:>6} {:>14} {:>14} {:>9} {:>14}\n", of.schedule, "count", "predicted", "measured", "error",
             "op error");
  for (const KindValidation& kind : of.kinds) {
    fmt::print("  {:<10} {:>6} {:>11} ms {:>11} ms {:>9} {:>14}\n", kRowKindNames[static_cast<std::size_t>(kind.kind)],
               kind.count, ms(kind.predicted_s), ms(kind.measured_s),
               signed_percent(difference(kind.predicted_s, kind.measured_s)),
               kind.op_error ? percent(*kind.op_error) : "-");
  }
  for (const PartValidation& part : of.parts) {
    fmt::print("  {:<10} {:>6} {:>11} ms {:>11} ms {:>9}\n", to_string(part.part), "", ms(part.seconds.first),
               ms(part.seconds.second), signed_percent(difference(part.seconds.first, part.seconds.second)));
  }
  for (std::size_t rank = 0; rank < of.ranks.size(); ++rank) {
    const RankValidation& at = of.ranks[rank];
    fmt::print("  rank {:<5} {:>6} {:>11} ms {:>11} ms {:>9}   bubble {} and {}; peak {} and {} of {} MiB\n", rank,
               "busy", ms(at.busy_s.first), ms(at.busy_s.second),
               signed_percent(difference(at.busy_s.first, at.busy_s.second)), percent(at.bubble_fraction.first),
               percent(at.bubble_fraction.second), mib(at.predicted_peak_bytes), mib(at.held_bytes),
               mib(at.arena_bytes));
    if (!at.exchange) continue;
    fmt::print("  {:<17} {:>11} ms {:>11} ms {:>9}   hidden {} and {}\n", "dispatch, combine",
               ms(at.exchange->seconds.first), ms(at.exchange->seconds.second),
               signed_percent(difference(at.exchange->seconds.first, at.exchange->seconds.second)),
               percent(at.exchange->hidden.first), percent(at.exchange->hidden.second));
  }
}

OrderedJson both(const Both<double>& values) { return {{"predicted", values.first}, {"measured", values.second}}; }

OrderedJson validation_json(const Validation& of, const Tolerances& tolerances) {
  OrderedJson kinds = OrderedJson::array();
  for (const KindValidation& kind : of.kinds) {
    OrderedJson row = {{"kind", kRowKindNames[static_cast<std::size_t>(kind.kind)]},
                       {"count", kind.count},
                       {"predicted_s", kind.predicted_s},
                       {"measured_s", kind.measured_s}};
    if (kind.op_error) row["op_error"] = *kind.op_error;
    kinds.push_back(std::move(row));
  }
  OrderedJson ranks = OrderedJson::array();
  for (const RankValidation& rank : of.ranks) {
    ranks.push_back({{"busy_s", both(rank.busy_s)},
                     {"bubble_fraction", both(rank.bubble_fraction)},
                     {"predicted_peak_bytes", rank.predicted_peak_bytes},
                     {"held_bytes", rank.held_bytes},
                     {"arena_bytes", rank.arena_bytes}});
    if (!rank.exchange) continue;
    ranks.back()["exchange"] = {{"seconds", both(rank.exchange->seconds)}, {"hidden", both(rank.exchange->hidden)}};
  }
  OrderedJson parts = OrderedJson::array();
  for (const PartValidation& part : of.parts) {
    parts.push_back(
        {{"part", to_string(part.part)}, {"predicted_s", part.seconds.first}, {"measured_s", part.seconds.second}});
  }
  const Verdict verdict = tolerances.verdict(of);
  OrderedJson within;  // null without a verdict
  if (verdict != Verdict::none) within = verdict == Verdict::within;
  OrderedJson out = {{"schedule", of.schedule},
                     {"within_tolerance", within},
                     {"disturbed_runs", of.disturbed_runs},
                     {"longest_wait_s", of.longest_wait_s},
                     {"involuntary_switches", of.switches},
                     {"makespan",
                      {{"predicted_s", of.predicted_s},
                       {"measured_s", of.median_s()},
                       {"difference", of.makespan_difference()},
                       {"runs_s", of.measured_s}}},
                     {"bubble_fraction", both(of.bubble_fraction)},
                     {"memory_difference", of.memory_difference()},
                     {"kinds", std::move(kinds)},
                     {"ranks", std::move(ranks)}};
  if (!parts.empty()) out["parts"] = std::move(parts);
  return out;
}

Verdict Tolerances::verdict(const Validation& validation) const {
  if (!validation.calm) return Verdict::none;
  const bool holds =
      std::abs(validation.makespan_difference()) <= makespan && std::abs(validation.memory_difference()) <= memory;
  return holds ? Verdict::within : Verdict::outside;
}

// What predictions with measured costs leave out.
std::vector<std::string> not_validated() {
  return {"waits for cores (such runs are left out or marked)", "caches that other ops fill than in the profile"};
}

// Prints one line per schedule, then its kinds of ops and its ranks.
void print_validations(std::span<const Validation> validations, const ValidationHeading& heading,
                       const Tolerances& tolerances) {
  fmt::print("{}, {}, {}, {}; costs {}; medians of {} runs\n\n", heading.machine, heading.model, heading.precision,
             heading.transport, heading.costs, validations.front().measured_s.size());
  print_validation_summary(validations, tolerances);
  int disturbed = 0;
  for (const Validation& of : validations) disturbed += of.disturbed_runs;
  if (disturbed > 0) fmt::print("\n{} runs in which a rank waited for a core are left out or marked\n", disturbed);
  for (const Validation& of : validations) print_validation_details(of);
}

// Returns one JSON document (schema sluice.validation/1, docs/formats.md).
std::string validations_json(std::span<const Validation> validations, const ValidationHeading& heading,
                             const Tolerances& tolerances, const std::vector<Assumption>& assumed) {
  OrderedJson out = {{"schema", "sluice.validation/1"},
                     {"machine", heading.machine},
                     {"model", heading.model},
                     {"precision", heading.precision},
                     {"transport", heading.transport},
                     {"costs", heading.costs},
                     {"tolerance", tolerances.makespan},
                     {"memory_tolerance", tolerances.memory},
                     {"validations", OrderedJson::array()}};
  for (const Validation& of : validations) out["validations"].push_back(validation_json(of, tolerances));
  add_assumptions(out, assumed, not_validated());
  return json_text(out);
}

struct ValidateOptions {
  std::unique_ptr<RunFlags> flags;
  std::vector<std::string> schedules;
  ProfilingFlags profiling;
  std::string profile;
  std::string cost;
  int steps = 10;
  Tolerances tolerances{.makespan = 0.1, .memory = 0.05};
  double max_wait = kMostCoreWait;
  RunPlaceFlags place;
  WatchFlags watch;
  std::string trace;
  bool json = false;
};

// One schedule to validate. Not movable, because its plan is not.
struct Case {
  Case(const RunFlags& flags, const RunPlace& place, const std::string& schedule, bool unsliced)
      : scenario(flags.scenario(schedule, unsliced)),
        plan(flags.spec(scenario, place), flags.schedule(scenario, kBatches)),
        tokens(flags.tokens(plan)),
        name(names_file(scenario.schedule) ? std::filesystem::path(scenario.schedule).stem().string()
                                           : plan.schedule().family()) {}

  static constexpr int kBatches = 8;  // default for schedules without a flush

  Scenario scenario;
  RunPlan plan;
  TokenSource tokens;
  std::string name;  // the family, or the name of the schedule's file
};

bool is_sliced(const std::string& schedule) {
  return names_file(schedule) || find_family(schedule, "--schedule").sliced;
}

CostTable table_of(const Profile& profile, const RunPlan& plan) {
  ProfileChoice choice;
  choice.sequences = plan.schedule().shapes()[0].sequences;
  choice.tensor_parallel = plan.layout().tensor;
  ProfileFit fit = fit_profile(profile, choice);
  return std::move(fit.table);
}

// Returns the costs from --cost or --profile; empty if a profile is to be measured.
std::optional<CostTable> table_from_files(const ValidateOptions& options, const RunPlan& plan) {
  if (!options.cost.empty()) return read_cost_table(options.cost);
  if (!options.profile.empty()) return table_of(read_profile(options.profile), plan);
  return std::nullopt;
}

TrialReport run_cases(const std::deque<Case>& cases, const ValidateOptions& options, const RunPlace& place,
                      const Supervision& supervision, bool measures) {
  TrialSpec spec{.runs = options.steps, .devices = &place.devices()};
  const bool all_count = options.max_wait >= 1 || place.shares_cores(cases.front().plan.layout().size());
  spec.most_wait = all_count ? std::numeric_limits<double>::infinity() : options.max_wait;
  for (const Case& each : cases) {
    spec.plans.push_back(&each.plan);
    spec.tokens.push_back(&each.tokens);
  }
  ProfilingSpec profiling;
  if (measures) {
    profiling = profiling_spec(spec.plans, options.profiling, place, cases.front().tokens);
    profiling.most_wait = spec.most_wait;
    spec.profiling = &profiling;
  }
  Progress progress("runs", options.steps * std::ssize(cases));
  const auto observer = [&](int done) { progress.done(done); };
  Transport* const transport = place.transport();
  TrialReport report = transport == nullptr
                           ? run_trials_with_threads(spec, observer, supervision)
                           : run_trials_as_process(spec, *transport, place.own_device(), observer, supervision);
  report.profile.source = "measured";
  report.profile.machine = place.machine(cases.front().plan.layout().size());
  return report;
}

void write_timelines(const std::string& path, const Case& each, const Validation& validation) {
  const OpGraph& graph = each.plan.graph();
  const auto predicted_memory = memory_over_time(graph, validation.predicted, true);
  const auto measured_memory = memory_over_time(graph, validation.nearest, true);
  const RunRows predicted = rows_of(graph, validation.predicted, predicted_memory);
  const RunRows measured = rows_of(graph, validation.nearest, measured_memory);
  write_side_by_side_file(path, {TraceSide{"predicted", &predicted}, TraceSide{"measured", &measured}});
}

void check_flags(const ValidateOptions& options) {
  if (!options.profile.empty() && !options.cost.empty()) throw InputError("--profile and --cost exclude each other");
  if (!options.trace.empty() && options.schedules.size() > 1) {
    throw InputError(fmt::format("--trace: expected one --schedule, got {}", options.schedules.size()));
  }
}

// Returns the schedules to validate, which need the same number of ranks. Throws InputError.
std::deque<Case> cases_of(const ValidateOptions& options, const RunPlace& place) {
  std::deque<Case> cases;
  if (options.schedules.empty()) cases.emplace_back(*options.flags, place, "", false);
  // Of several schedules, slices apply to those that support them; if none does, they are an error.
  const bool any_sliced = std::any_of(options.schedules.begin(), options.schedules.end(), is_sliced);
  for (const std::string& schedule : options.schedules) {
    cases.emplace_back(*options.flags, place, schedule, any_sliced && !is_sliced(schedule));
  }
  const RunPlan& plan = cases.front().plan;
  for (const Case& each : cases) {
    if (each.plan.layout().size() == plan.layout().size()) continue;
    throw InputError(fmt::format("--schedule: expected schedules with the same number of ranks; {} and {} differ",
                                 cases.front().name, each.name));
  }
  return cases;
}

void warn_of_shared_cores(const RunPlace& place, int workers) {
  if (!place.shares_cores(workers)) return;
  const int cores = usable_cores();
  print_message(
      fmt::format("warning: {} workers share {} core{}: ops are faster while other ranks wait, which is not predicted",
                  workers, cores, cores == 1 ? "" : "s"));
}

int report_validations(const ValidateOptions& options, const std::deque<Case>& cases, const RunPlace& place,
                       const CostTable& table, const TrialReport& trials) {
  const RunPlan& plan = cases.front().plan;
  const Tolerances& tolerances = options.tolerances;
  std::vector<Validation> validations;
  int exit_code = kDone;
  const bool accepted = options.max_wait >= 1;
  const bool disturbed_costs = trials.profile_disturbed || (table.waited_for_cores && !accepted);
  const bool shared_cores = place.shares_cores(plan.layout().size()) && !accepted;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    validations.push_back(validate(cases[i].plan, table, trials.plans[i], (options.steps + 1) / 2));
    validations.back().schedule = cases[i].name;
    validations.back().calm = validations.back().calm && !disturbed_costs && !shared_cores;
    const Verdict verdict = tolerances.verdict(validations.back());
    if (verdict == Verdict::outside) exit_code = kOutsideTolerance;
    if (verdict == Verdict::none && exit_code == kDone) exit_code = kMachineBusy;
  }
  if (!options.trace.empty()) write_timelines(options.trace, cases.front(), validations.front());
  const ValidationHeading heading{.machine = place.machine(plan.layout().size()),
                                  .model = plan.spec().model.name,
                                  .precision = to_string(plan.spec().precision),
                                  .transport = place.transport_name(),
                                  .costs = !options.cost.empty()      ? options.cost
                                           : !options.profile.empty() ? options.profile
                                                                      : "measured"};
  if (options.json) {
    fmt::print("{}", validations_json(validations, heading, tolerances, options.flags->assumed()));
  } else {
    print_validations(validations, heading, tolerances);
    std::string assumed;
    for (const Assumption& each : options.flags->assumed()) assumed += fmt::format(", {} {}", each.name, each.value);
    fmt::print("\n{}  not modeled  {}\n", assumed.empty() ? "" : fmt::format("  assumed      {}\n", assumed.substr(2)),
               fmt::join(not_validated(), ", "));
  }
  if (exit_code == kMachineBusy && shared_cores) {
    print_message("no verdict: there are more workers than cores; accept it with --max-wait 100%");
  } else if (exit_code == kMachineBusy) {
    print_message(
        fmt::format("machine busy: no verdict: ranks waited for cores for more than {:g} % of {}; repeat on an idle "
                    "machine, or accept "
                    "it with --max-wait",
                    100 * options.max_wait, disturbed_costs ? "the profile" : "most runs"));
  }
  return exit_code;
}

int validate_command(const ValidateOptions& options) {
  check_flags(options);
  const MpiRanks ranks(options.watch.start_limit());
  const HeldSignals held;
  try {
    RunPlace place(options.place, ranks);
    const std::deque<Case> cases = cases_of(options, place);
    const RunPlan& plan = cases.front().plan;
    if (place.first()) options.flags->print_ignored("validate");
    const bool woven =
        std::any_of(cases.begin(), cases.end(), [](const Case& each) { return each.plan.has_woven_blocks(); });
    if (place.first() && !woven) options.flags->print_weave_note(plan);
    place.open(plan);
    std::optional<CostTable> table = table_from_files(options, plan);
    // Reports errors in files before anything runs.
    for (const Case& each : cases) {
      if (table) static_cast<void>(predicted_timeline(each.plan, *table));
    }
    warn_of_shared_cores(place, plan.layout().size());
    RunWatch watch(options.watch, place, ranks);
    TrialReport trials;
    const int code = watch.run([&] { trials = run_cases(cases, options, place, watch.supervision(), !table); });
    if (code != kDone || !place.first()) return code;
    place.print_library_notes();
    if (!table) table = table_of(trials.profile, plan);
    return report_validations(options, cases, place, *table, trials);
  } catch (...) {
    if (is_first_process(ranks)) throw;
    return kWrongInput;  // the first process reports the error
  }
}

}  // namespace

Subcommand add_validate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "validate",
      "Predict and run schedules on this machine, and compare the times and memory.\n\n"
      "Examples:\n"
      "  sluice validate\n"
      "  sluice validate --schedule gpipe,1f1b,seq1f1b,zb-h1 --slices 4\n"
      "  sluice validate --schedule zb-h1 --trace both.json.gz --json\n"
      "  sluice validate --cost cost.json --tolerance 15%\n"
      "  mpirun -n 2 sluice validate --schedule 1f1b\n"
      "  sluice validate --backend cuda --devices green:4 --pp 4 --schedule 1f1b,zb-h1\n\n"
      "It measures a profile of the model's ops with all ranks working (or reads one), fits costs to it, simulates "
      "each "
      "schedule with them, and runs the same graph: once to warm up, then --steps times. The prediction does not use "
      "these runs. Differences are measured / predicted - 1. Measured values are medians over the runs; peak memory is "
      "the maximum.");
  command->group("Run and measure");
  command->footer(
      fmt::format("Exit codes: 0 within the tolerances, 2 wrong input, 3 not enough memory, 4 invalid schedule, 5 "
                  "outside the tolerances, {}, 10 machine busy: no verdict.",
                  kFailureCodes));
  const auto options = std::make_shared<ValidateOptions>();
  options->flags = std::make_unique<RunFlags>(*command, std::initializer_list<std::string_view>{"--schedule"});
  const auto validation = [](CLI::Option* option) { return option->group("Validation"); };
  validation(command
                 ->add_option("--schedule", options->schedules,
                              "Schedule families or files to validate, as a,b,c; --slices applies to those that cut "
                              "sequences (default: 1f1b)")
                 ->type_name(kNameOrFile))
      ->delimiter(',');
  validation(
      command->add_option("--steps", options->steps, "Number of measured runs per schedule, 1 to 1000000 (default 10)"))
      ->check(CLI::Range(1, 1000000));
  validation(command->add_option("--tolerance", options->tolerances.makespan,
                                 "Maximum error of the median makespan, such as 10% or 0.1 (default 10%)"))
      ->transform(fraction());
  validation(command->add_option("--memory-tolerance", options->tolerances.memory,
                                 "Maximum error of the peak memory per rank, such as 5% or 0.05 (default 5%)"))
      ->transform(fraction());
  validation(command->add_option("--max-wait", options->max_wait,
                                 "Maximum time that a rank may wait for a core, relative to a run, such as 2% or 0.02; "
                                 "other runs are repeated, up to four times --steps in all (default 2%; 100%: all runs "
                                 "count)"))
      ->transform(fraction(1));
  validation(
      command->add_option("--profile", options->profile, "Use this profile (sluice.profile/1) instead of measuring one")
          ->type_name(kReadFile));
  validation(command->add_option("--cost", options->cost, "Use this cost file (sluice.cost/1) instead of a profile")
                 ->type_name(kReadFile));
  options->place.add_to(*command, "Validation");
  validation(add_output(*command, "--trace", options->trace,
                        "Write the predicted timeline and the run nearest to the median as a Chrome trace "
                        "(.json or .gz)"));
  validation(command->add_flag("--json", options->json, "Print one JSON document (sluice.validation/1)"));
  options->profiling.add_to(*command);
  options->watch.add_to(*command);
  return {command, [options] { return options->flags->naming_flags([&] { return validate_command(*options); }); }};
}

}  // namespace sluice::tools
