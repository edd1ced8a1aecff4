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
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/slice/slice_costs.h"
#include "tools/slice/slice_output.h"

namespace sluice::tools {
namespace {

// Scenario flags that do not apply to slicing.
constexpr std::string_view kUnusedFlags[] = {"--memory-cap", "--time-budget", "--placement", "--slicing",
                                             "--slice-lengths"};

// The fastest cut, which --balanced is compared with, has at least this many positions and fewer than twice as many.
constexpr int kFewestPositions = 256;

struct SliceOptions {
  std::string file;
  std::string times;
  std::string schedule;  // --for
  double algorithm1_ms = -1;
  bool balanced = false;
  bool backward = false;
  int joint = 0;
  std::int64_t granularity = 0;
  int max_slices = 0;
  double time_budget_s = -1;  // below 0: the default
  bool json = false;
  std::string output;
  std::unique_ptr<ScenarioFlags> flags;
};

void write_lengths(const SliceOptions& options, const std::vector<std::int64_t>& lengths, const std::string& schedule) {
  if (options.output.empty()) return;
  write_file_whole(options.output, lengths_text(lengths, schedule, options.output.ends_with(".json")));
}

SliceCosts costs_of(const SliceOptions& options, const nlohmann::json& document, std::int64_t granularity) {
  if (options.times.empty()) return SliceCosts(document, options.file, granularity, options.backward);
  const nlohmann::json::json_pointer place("/parallelism/pp");
  if (!document.contains(place) || !document[place].is_number_integer())
    throw InputError("slice: --times needs --pp, the number of cells");
  const auto cells = document[place].get<std::int64_t>();
  if (cells < 1 || cells > kMaxRanks) {
    throw InputError(fmt::format("--pp: expected a whole number of cells from 1 to {}, got {}", kMaxRanks, cells));
  }
  return SliceCosts(options.times, static_cast<int>(cells), options.backward);
}

// Returns the largest FLOPs of a layer in these slices divided by the smallest, minus 1.
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

CutReport frame_of(const std::string& method, const SliceOptions& options, const SliceCosts& costs) {
  return {.method = method,
          .tokens = costs.tokens(),
          .granularity = costs.granularity(),
          .cells = costs.cells(),
          .sequences = costs.sequences(),
          .backward = options.backward,
          .hop_latency = costs.total_hop_latency()};
}

// Computes the times of even slices and of no slicing, for comparison with the plan.
void compare(const SlicingProblem& problem, CutReport& report) {
  constexpr std::int64_t kMostEven = 512;
  const std::int64_t granularity = problem.forward.granularity;
  const std::int64_t most = std::min(problem.forward.granules(), kMostEven);
  report.best_even_time = Duration::max();
  for (std::int64_t count = 1; count <= most; ++count) {
    const Duration time = pipeline_latency(problem, even_slices(report.tokens, granularity, count));
    if (count == 1) report.whole = time;
    if (count == std::ssize(report.plan.lengths)) report.even = time;
    if (time >= report.best_even_time) continue;
    report.best_even_time = time;
    report.best_even = count;
  }
  if (std::ssize(report.plan.lengths) > most && std::ssize(report.plan.lengths) <= problem.forward.granules()) {
    report.even = pipeline_latency(problem, even_slices(report.tokens, granularity, std::ssize(report.plan.lengths)));
  }
}

int print_cut(const SliceOptions& options, const CutReport& report) {
  write_lengths(options, report.plan.lengths, "");
  fmt::print("{}", options.json ? cut_json(report) : cut_table(report));
  return kDone;
}

int terapipe(const SliceOptions& options, const nlohmann::json& document) {
  SliceCosts costs = costs_of(options, document, options.granularity);
  SlicingProblem problem = costs.problem();
  const int slices = requested_slices(*options.flags);
  const bool algorithm1 = options.algorithm1_ms >= 0;
  if (algorithm1 && (slices > 0 || options.max_slices > 0)) {
    throw InputError(
        "slice: --algorithm1 excludes --slices and --max-slices: Algorithm 1 has no limit on the number of slices");
  }
  if (slices > 0) problem.min_slices = problem.max_slices = slices;
  if (options.max_slices > 0) problem.max_slices = options.max_slices;
  CutReport report = frame_of(algorithm1 ? "algorithm1" : "terapipe", options, costs);
  report.proven = true;
  report.plan = algorithm1 ? algorithm1_slices(problem, from_seconds(options.algorithm1_ms / 1e3, "--algorithm1"))
                           : best_slices(problem);
  compare(problem, report);
  return print_cut(options, report);
}

// Cuts into slices of equal FLOPs, and compares their time with the fastest cut. That one is searched at a granularity
// with few positions: the time of each pair of positions is needed.
int balanced(const SliceOptions& options, const nlohmann::json& document) {
  const int slices = requested_slices(*options.flags);
  if (slices == 0) throw InputError("slice: --balanced needs --slices, the number of slices");
  if (!options.times.empty()) throw InputError("slice: --balanced needs a model: it excludes --times");
  const nlohmann::json::json_pointer place("/batch/sequence_length");
  std::int64_t granularity = options.granularity;
  if (granularity == 0 && document.contains(place) && document[place].is_number_integer()) {
    granularity = balanced_multiple(document[place].get<std::int64_t>(), slices);
  }
  const SliceCosts fine = costs_of(options, document, granularity);
  if (!fine.scenario()->model) throw InputError("slice: --balanced needs a model (--model)");
  if (fine.tokens() % fine.granularity() != 0) {
    throw InputError(fmt::format("slice: --balanced: expected a granularity that divides {} tokens, got {}",
                                 fine.tokens(), fine.granularity()));
  }
  CutReport report = frame_of("balanced", options, fine);
  report.plan.lengths = balanced_slices(*fine.scenario()->model, fine.tokens(), slices, fine.granularity());
  report.plan.latency = fine.latency(report.plan.lengths);
  report.flops_spread = flops_spread(*fine.scenario()->model, report.plan.lengths);
  report.best_granularity = fine.granularity();
  const int positions = std::clamp(slices, kFewestPositions, 2 * kFewestPositions);
  while (fine.tokens() / (2 * report.best_granularity) >= positions) report.best_granularity *= 2;
  SliceCosts coarse = costs_of(options, document, report.best_granularity);
  const SlicingProblem problem = coarse.problem();
  report.plan.lower_bound = best_slices(problem).latency;
  report.proven = report.best_granularity == report.granularity;
  compare(problem, report);
  report.even = fine.latency(even_slices(fine.tokens(), fine.granularity(), slices));
  return print_cut(options, report);
}

int joint(const SliceOptions& options, const nlohmann::json& document) {
  if (!options.output.empty()) throw InputError("slice: --joint excludes -o: it has one cut per part of the batch");
  SliceCosts costs = costs_of(options, document, options.granularity);
  const int slices = requested_slices(*options.flags);
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

// Errors about the schedule name the flag that sets it.
ScheduleSlices slices_naming_for(const SlicesRequest& request) {
  try {
    return slices_for_schedule(request);
  } catch (const DoesNotFit&) {
    throw;
  } catch (const InputError& error) {
    const std::string what = error.what();
    const std::string place = request.scenario.source + ": /schedule/name";
    if (!what.starts_with(place)) throw;
    throw InputError("--for" + what.substr(place.size()));
  }
}

int for_schedule(const SliceOptions& options, nlohmann::json document) {
  if (!options.times.empty()) throw InputError("slice: --for needs a scenario: it excludes --times");
  const int slices = requested_slices(*options.flags);
  set_schedule(document, options.schedule);
  SlicesRequest request{.scenario = ScenarioFlags::read(document, options.file), .slices = slices};
  request.granularity =
      options.granularity > 0 ? options.granularity : default_granularity(request.scenario.training.sequence_length);
  if (options.max_slices > 0) request.max_slices = options.max_slices;
  if (options.time_budget_s >= 0) request.time_budget_s = options.time_budget_s;
  if (!names_file(request.scenario.schedule)) {
    request.scenario.schedule = find_family(request.scenario.schedule, "--for").name;
  }
  const ScheduleSlices found = slices_naming_for(request);
  if (found.best) write_lengths(options, found.candidates[*found.best].lengths, request.scenario.schedule);
  fmt::print("{}", options.json ? schedule_json(request, found) : schedule_table(request, found));
  return found.best ? kDone : kNotFeasible;
}

int slice_command(const SliceOptions& options) {
  const auto refuse = [](bool given, const char* rule) {
    if (given) throw InputError(fmt::format("slice: {}", rule));
  };
  const bool algorithm1 = options.algorithm1_ms >= 0;
  refuse((options.schedule.empty() ? 0 : 1) + (algorithm1 ? 1 : 0) + (options.balanced ? 1 : 0) +
                 (options.joint > 0 ? 1 : 0) >
             1,
         "--for, --algorithm1, --balanced and --joint exclude each other");
  refuse(!options.schedule.empty() && options.backward,
         "--for excludes --backward: it always simulates forward and backward");
  refuse(options.balanced && options.max_slices > 0,
         "--balanced needs --slices, the number of slices, not --max-slices");
  refuse(options.schedule.empty() && options.time_budget_s >= 0, "--time-budget needs --for");
  refuse(!options.times.empty() && options.granularity > 0, "--times excludes --granularity: the table has its own");
  refuse(!options.times.empty() && !options.file.empty(), "--times excludes a scenario file");
  const nlohmann::json document = options.flags->document(options.file);
  ScenarioFlags::check_file(options.file, document);
  ScenarioFlags::print_notes(options.file);
  if (!options.schedule.empty()) return for_schedule(options, document);
  constexpr std::string_view kIgnored[] = {"/calibration", "/perturbation"};
  const std::string ignored = ScenarioFlags::ignored(options.file, "slice", kIgnored);
  print_message(ignored);
  if (options.balanced) return balanced(options, document);
  if (options.joint > 0) return joint(options, document);
  return terapipe(options, document);
}

}  // namespace

Subcommand add_slice_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "slice",
      "Find the fastest way to cut sequences into slices for a pipeline or a schedule.\n\n"
      "Examples:\n"
      "  sluice slice examples/gpt3-13b-terapipe-v100.json --granularity 8\n"
      "  sluice slice examples/gpt3-13b-terapipe-v100.json --backward --joint 4\n"
      "  sluice slice examples/gpt3-13b-terapipe-v100.json --algorithm1 0.1\n"
      "  sluice slice --times t_fwd.json --pp 96\n"
      "  sluice slice examples/gpt-2.7b-seq1f1b-a100.json --for seq1f1b -o cut.json\n\n"
      "Without --for, it solves TeraPipe's problem exactly: one microbatch passes through K equal pipeline cells in "
      "time sum(t) + (K - 1) max(t), with t the time of a slice on the slowest stage, and separate maxima for forward "
      "and backward. The latency of transfers is independent of the cut and reported separately. With --for, it "
      "searches the cut with the fastest simulated iteration that fits in memory, and reports the gap to a lower "
      "bound.");
  command->group("Predict and plan");
  command->footer("Exit codes: 0 success, 2 wrong input, 3 no cut fits in memory, 4 invalid schedule.");
  const auto options = std::make_shared<SliceOptions>();
  command->add_option("scenario", options->file, "Scenario file (docs/formats.md); flags override its keys");
  command
      ->add_option("--times", options->times,
                   "Table of slice times (sluice.slice_times/1) to use instead of a scenario, for --pp cells")
      ->type_name(kReadFile);
  command->add_option("--for", options->schedule,
                      "Minimize the simulated iteration time of this schedule family; --slices fixes the number of "
                      "slices");
  command->add_flag("--backward", options->backward,
                    "Minimize the time of forward and backward (default: forward only)");
  command
      ->add_option(
          "--algorithm1", options->algorithm1_ms,
          "Use TeraPipe's Algorithm 1 as published, with this epsilon in ms, 0 to 1e9; the paper uses 0.1 (default: "
          "off)")
      ->check(number_from(0, 1e9));
  command->add_flag("--balanced", options->balanced,
                    "Cut into --slices slices of equal FLOPs under causal attention (default: off)");
  command
      ->add_option("--joint", options->joint,
                   "Cut a batch of this many sequences, 1 to 4096, into parts, and each part into slices "
                   "(default: off)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option(
          "--granularity", options->granularity,
          "Slice lengths are multiples of this number of tokens, 1 to 1073741824, except the last (default: the "
          "smallest power of two with at most 256 multiples; --balanced: 128 or 1)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command
      ->add_option("--max-slices", options->max_slices,
                   "Maximum number of slices, 1 to 32767 (default: no limit; --for: 16)")
      ->check(CLI::Range(1, 32767));
  command
      ->add_option("--time-budget", options->time_budget_s,
                   "Search time of --for in seconds, 0 to 1000000 (default 10)")
      ->check(number_from(0, 1e6));
  command->add_flag("--json", options->json, "Print one JSON document (sluice.slice/1)");
  add_output(*command, "-o,--output", options->output,
             "Write the lengths to this file: a scenario's \"schedule\" if the name ends in .json, otherwise "
             "a,b,c for simulate --slice-lengths");
  options->flags = std::make_unique<ScenarioFlags>(*command, kUnusedFlags);
  ScenarioFlags::add_imports(*command, options->file);
  return {command,
          [options] { return options->flags->naming_flags(options->file, [&] { return slice_command(*options); }); }};
}

}  // namespace sluice::tools
