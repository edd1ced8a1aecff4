#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "model/slicing/algorithm1.h"
#include "model/slicing/balanced.h"
#include "sim/planner/slices_for_schedule.h"
#include "tools/command/command.h"
#include "tools/command/scenario_flags.h"
#include "tools/slice/slice_costs.h"
#include "tools/slice/slice_output.h"

namespace sluice::tools {
namespace {

// Flags of a scenario that no cut has a use for.
constexpr std::string_view kOfAutomaticSchedules[] = {"--memory-cap", "--time-budget", "--placement"};

struct Options {
  std::string file;
  std::string times;
  std::string schedule;  // --for
  double algorithm1_ms = -1;
  bool balanced = false;
  bool backward = false;
  int joint = 0;
  std::int64_t granularity = 0;
  int max_slices = 0;
  double time_budget_s = 10;
  bool json = false;
  std::string output;
  std::unique_ptr<ScenarioFlags> flags;
};

void write_lengths(const Options& options, const std::vector<std::int64_t>& lengths, const std::string& schedule) {
  if (options.output.empty()) return;
  write_file_whole(options.output, lengths_text(lengths, schedule, options.output.ends_with(".json")));
}

SliceCosts costs_of(const Options& options, const nlohmann::json& document, std::int64_t granularity) {
  if (options.times.empty()) return SliceCosts(document, options.file, granularity, options.backward);
  const nlohmann::json::json_pointer place("/parallelism/pp");
  if (!document.contains(place) || !document[place].is_number_integer())
    throw InputError("slice: --times needs the number of cells: --pp");
  const auto cells = document[place].get<std::int64_t>();
  if (cells < 1 || cells > kMaxRanks) {
    throw InputError(fmt::format("--pp: expected 1 to {} cells, got {}", kMaxRanks, cells));
  }
  return SliceCosts(options.times, static_cast<int>(cells), options.backward);
}

// Largest over least FLOPs of a layer in these slices, less 1.
double flops_spread(const Transformer& model, const std::vector<std::int64_t>& lengths) {
  double least = std::numeric_limits<double>::max();
  double most = 0;
  for (std::int64_t context = 0; const std::int64_t length : lengths) {
    const double experts = static_cast<double>(model.layers - model.dense_layers()) / model.layers;
    const double flops = (1 - experts) * layer_slice_flops(model, length, context).forward() +
                         experts * layer_slice_flops(model, length, context, LayerKind::experts).forward();
    least = std::min(least, flops);
    most = std::max(most, flops);
    context += length;
  }
  return most / least - 1;
}

CutReport frame_of(const std::string& method, const Options& options, const SliceCosts& costs) {
  return {.method = method,
          .tokens = costs.tokens(),
          .granularity = costs.granularity(),
          .cells = costs.cells(),
          .sequences = costs.sequences(),
          .backward = options.backward,
          .hops = costs.hops()};
}

// The times of even slices and of none beside the plan's.
void compare(const SlicingProblem& problem, CutReport& report) {
  constexpr std::int64_t kMostEven = 512;
  const std::int64_t most = std::min(problem.forward.granules(), kMostEven);
  report.best_even_time = Duration::max();
  for (std::int64_t count = 1; count <= most; ++count) {
    const Duration time = pipeline_latency(problem, even_slices(report.tokens, report.granularity, count));
    if (count == 1) report.whole = time;
    if (count == std::ssize(report.plan.lengths)) report.even = time;
    if (time >= report.best_even_time) continue;
    report.best_even_time = time;
    report.best_even = count;
  }
  if (std::ssize(report.plan.lengths) > most) {
    report.even =
        pipeline_latency(problem, even_slices(report.tokens, report.granularity, std::ssize(report.plan.lengths)));
  }
}

int print_cut(const Options& options, const CutReport& report) {
  write_lengths(options, report.plan.lengths, "");
  fmt::print("{}", options.json ? cut_json(report) : cut_table(report));
  return kDone;
}

int terapipe(const Options& options, const nlohmann::json& document) {
  SliceCosts costs = costs_of(options, document, options.granularity);
  SlicingProblem problem = costs.problem();
  const int slices = asked_slices(*options.flags);
  const bool printed = options.algorithm1_ms >= 0;
  if (printed && (slices > 0 || options.max_slices > 0)) {
    throw InputError("slice: Algorithm 1 has no limit on the number of slices: leave out --slices and --max-slices");
  }
  if (slices > 0) problem.min_slices = problem.max_slices = slices;
  if (options.max_slices > 0) problem.max_slices = options.max_slices;
  CutReport report = frame_of(printed ? "algorithm1" : "terapipe", options, costs);
  report.proven = true;
  report.plan = printed ? algorithm1_slices(problem, from_seconds(options.algorithm1_ms / 1e3, "--algorithm1"))
                        : best_slices(problem);
  compare(problem, report);
  return print_cut(options, report);
}

// Equal FLOPs; the times, and how far they are from the optimum, are those of the costs.
int balanced(const Options& options, const nlohmann::json& document) {
  const int slices = asked_slices(*options.flags);
  if (slices == 0) throw InputError("slice: --balanced needs the number of slices: --slices");
  if (!options.times.empty()) throw InputError("slice: --balanced needs a model, not a table of times");
  const nlohmann::json::json_pointer place("/batch/sequence_length");
  std::int64_t granularity = options.granularity;
  if (granularity == 0 && document.contains(place) && document[place].is_number_integer()) {
    granularity = balanced_multiple(document[place].get<std::int64_t>(), slices);
  }
  SliceCosts costs = costs_of(options, document, granularity);
  if (!costs.scenario()->model) throw InputError("slice: --balanced needs a model (--model)");
  if (costs.tokens() % costs.granularity() != 0) {
    throw InputError(fmt::format("slice: --balanced: expected a granularity that divides {} tokens, got {}",
                                 costs.tokens(), costs.granularity()));
  }
  SlicingProblem problem = costs.problem();
  CutReport report = frame_of("balanced", options, costs);
  report.plan.lengths = balanced_slices(*costs.scenario()->model, costs.tokens(), slices, costs.granularity());
  report.plan.latency = pipeline_latency(problem, report.plan.lengths);
  report.flops_spread = flops_spread(*costs.scenario()->model, report.plan.lengths);
  report.plan.lower_bound = best_slices(problem).latency;
  report.proven = true;
  compare(problem, report);
  return print_cut(options, report);
}

int joint(const Options& options, const nlohmann::json& document) {
  if (!options.output.empty()) throw InputError("slice: -o writes one cut, and --joint has one for each part");
  SliceCosts costs = costs_of(options, document, options.granularity);
  const int slices = asked_slices(*options.flags);
  const auto problem_of = [&](int sequences) {
    SlicingProblem problem = costs.problem(sequences);
    if (slices > 0) problem.min_slices = problem.max_slices = slices;
    if (options.max_slices > 0) problem.max_slices = options.max_slices;
    return problem;
  };
  JointReport report{.frame = frame_of("joint", options, costs)};
  report.frame.sequences = options.joint;
  report.plan = best_joint_slices(options.joint, problem_of);
  report.together = best_slices(problem_of(options.joint)).latency;
  report.apart = options.joint * best_slices(problem_of(1)).latency;
  fmt::print("{}", options.json ? joint_json(report) : joint_table(report));
  return kDone;
}

int for_schedule(const Options& options, nlohmann::json document) {
  if (!options.times.empty()) throw InputError("slice: --for simulates a scenario, not a table of times");
  const int slices = asked_slices(*options.flags);
  name_schedule(document, options.schedule);
  SlicesRequest request{.scenario = ScenarioFlags::read(document, options.file), .slices = slices};
  request.granularity =
      options.granularity > 0 ? options.granularity : default_granularity(request.scenario.training.sequence_length);
  if (options.max_slices > 0) request.max_slices = options.max_slices;
  request.time_budget_s = options.time_budget_s;
  if (!names_file(request.scenario.schedule)) {
    request.scenario.schedule = find_family(request.scenario.schedule).name;
  }
  const ScheduleSlices found = slices_for_schedule(request);
  if (found.best) write_lengths(options, found.candidates[*found.best].lengths, request.scenario.schedule);
  fmt::print("{}", options.json ? schedule_json(request, found) : schedule_table(request, found));
  return found.best ? kDone : kAnswerIsNo;
}

int slice_command(const Options& options) {
  const auto refuse = [](bool given, const char* what) {
    if (given) throw InputError(fmt::format("slice: {}", what));
  };
  const bool printed = options.algorithm1_ms >= 0;
  refuse((options.schedule.empty() ? 0 : 1) + (printed ? 1 : 0) + (options.balanced ? 1 : 0) +
                 (options.joint > 0 ? 1 : 0) >
             1,
         "--for, --algorithm1, --balanced and --joint are different questions: give one");
  refuse(!options.schedule.empty() && options.backward, "--for simulates forward and backward: leave out --backward");
  refuse(!options.times.empty() && options.granularity > 0, "--times has a granularity of its own");
  refuse(!options.times.empty() && !options.file.empty(), "give a scenario or --times, not both");
  const nlohmann::json document = options.flags->document(options.file);
  if (!options.schedule.empty()) return for_schedule(options, document);
  if (options.balanced) return balanced(options, document);
  if (options.joint > 0) return joint(options, document);
  return terapipe(options, document);
}

}  // namespace

Subcommand add_slice_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "slice",
      "Cuts sequences into slices: the fastest cut for a pipeline, or for a schedule.\n\n"
      "Examples:\n"
      "  sluice slice examples/gpt3-13b-terapipe-v100.json --granularity 8\n"
      "  sluice slice examples/gpt3-13b-terapipe-v100.json --backward --joint 4\n"
      "  sluice slice examples/gpt3-13b-terapipe-v100.json --algorithm1 0.1\n"
      "  sluice slice --times t_fwd.json --pp 96\n"
      "  sluice slice examples/gpt-2.7b-seq1f1b-a100.json --for seq1f1b -o cut.json\n\n"
      "Without --for it solves TeraPipe's problem exactly: one microbatch through equal cells takes sum t + (K - 1) "
      "max "
      "t, forward and backward each with a maximum of its own. t is what the slowest stage takes for a slice. Latency "
      "of hops is not in it: it comes on top, once a hop, whatever the cut. With --for it searches the cut whose "
      "simulated iteration is fastest and fits in memory, and says how far that can be from the best.\n\n"
      "Exit codes: 0 done, 2 wrong input, 3 no cut fits in memory, 4 invalid schedule");
  const auto options = std::make_shared<Options>();
  command->add_option("scenario", options->file, "scenario file (docs/formats.md); flags are laid over it");
  command->add_option("--times", options->times,
                      "a table of slice times (sluice.slice_times/1) instead of a scenario, on --pp cells");
  command->add_option("--for", options->schedule,
                      "the cut for this family: least simulated iteration; --slices fixes their number");
  command->add_flag("--backward", options->backward, "a forward and a backward sweep, not the forward alone");
  command
      ->add_option("--algorithm1", options->algorithm1_ms,
                   "Algorithm 1 of TeraPipe as printed, with this epsilon in ms (the paper's: 0.1)")
      ->check(CLI::Range(0.0, 1e9));
  command->add_flag("--balanced", options->balanced, "equal FLOPs under causal attention, in --slices slices");
  command
      ->add_option("--joint", options->joint,
                   "cut this many sequences along both dimensions: parts of the batch, and "
                   "slices for each part")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--granularity", options->granularity,
                   "slices are multiples of so many tokens; the last one takes what is left (default: the power of two "
                   "that leaves at most 256; --balanced: 128 or 1)")
      ->check(CLI::PositiveNumber);
  command->add_option("--max-slices", options->max_slices, "at most so many slices (default: no limit; --for: 16)")
      ->check(CLI::Range(1, 32767));
  command->add_option("--time-budget", options->time_budget_s, "seconds that --for may search (default 10)")
      ->check(CLI::Range(0.0, 1e6));
  command->add_flag("--json", options->json, "one JSON document (sluice.slice/1) on standard output");
  command->add_option("-o,--output", options->output,
                      "write the lengths: a scenario's \"schedule\" if the name ends in .json, else a,b,c as simulate "
                      "--slice-lengths takes it");
  options->flags = std::make_unique<ScenarioFlags>(*command, kOfAutomaticSchedules);
  return {command, [options] { return slice_command(*options); }};
}

}  // namespace sluice::tools
