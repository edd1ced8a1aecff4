#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/compare/comparison_output.h"
#include "traces/chrome/chrome_trace.h"
#include "traces/chrome/side_by_side.h"
#include "traces/compare/comparison.h"

namespace sluice::tools {
namespace {

struct CompareOptions {
  std::string first;
  std::string second;
  bool json = false;
  bool by_kind = false;
  std::optional<double> tolerance;  // of the makespan, as a fraction
  std::string trace;
  std::size_t top = 10;
  std::optional<std::int64_t> step;
};

std::string notes_of(const std::string& name, const std::string& word, const ComparedRun& side) {
  std::string out = fmt::format("{}: {} {}", name, side.what, word);
  for (const std::string& note : side.read.notes) out += "; " + note;
  return out + "\n";
}

// Whether the makespans are within the tolerance; nullopt: times of workers that share cores allow no verdict.
std::optional<bool> within_tolerance(const CompareOptions& options, const Comparison& comparison, bool shared_cores) {
  if (!options.tolerance) return true;
  if (shared_cores) return std::nullopt;
  const std::optional<double> difference = comparison.makespan_difference();
  return difference && std::abs(*difference) <= *options.tolerance;
}

void print_verdict(std::optional<bool> within, double tolerance) {
  if (within) {
    fmt::print("makespan {} the tolerance of {:.3g} %\n", *within ? "within" : "OUTSIDE", 100 * tolerance);
  } else {
    fmt::print("no verdict: a run was measured with more workers than cores\n");
  }
}

int compare_command(const CompareOptions& options) {
  const ComparedRun first = compared_run(options.first, options.step);
  const ComparedRun second = compared_run(options.second, options.step);
  if (options.step && first.what == "simulated" && second.what == first.what) {
    throw InputError("compare: --step selects an iteration of a trace; scenarios have one");
  }
  const RunRows& a = first.read.run;
  const RunRows& b = second.read.run;
  const ComparisonOptions how{.top = options.top, .by_kind = options.by_kind};
  const Comparison comparison = compared(a, b, how, options.first, options.second);
  if (!options.trace.empty()) {
    const std::string warning = trace_size_warning(2 * (std::ssize(a.rows) + std::ssize(b.rows)));
    print_message(warning);
    write_side_by_side_file(options.trace, {TraceSide{how.first, &a}, TraceSide{how.second, &b}});
  }
  const bool shared_cores = first.read.shared_cores || second.read.shared_cores;
  const std::optional<bool> within = within_tolerance(options, comparison, shared_cores);
  nlohmann::ordered_json document = comparison_document(comparison);
  if (options.json) {
    document["sources"] = {{"first", {{"path", options.first}, {"notes", first.read.notes}}},
                           {"second", {{"path", options.second}, {"notes", second.read.notes}}}};
    if (options.tolerance) {
      document["tolerance"] = *options.tolerance;
      document["within_tolerance"] = within ? nlohmann::ordered_json(*within) : nlohmann::ordered_json();
    }
    fmt::print("{}", json_text(document));
  } else {
    fmt::print("{}{}\n{}", notes_of(how.first, options.first, first), notes_of(how.second, options.second, second),
               comparison_text(comparison, document));
    if (options.tolerance) {
      print_verdict(within, *options.tolerance);
    }
  }
  if (!within) return kMachineBusy;
  return *within ? kDone : kOutsideTolerance;
}

}  // namespace

Subcommand add_compare_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "Compare two timelines op by op, such as a prediction and a measurement.\n\n"
      "Examples:\n"
      "  sluice compare predicted.json.gz measured.json.gz\n"
      "  sluice compare scenario.json traces/iteration_10/ --tolerance 10%\n"
      "  sluice compare scenario.json rank0.json.gz,rank1.json.gz --trace both.json.gz\n"
      "  sluice compare examples/llama3-8b-zbv-h100.json other-schedule.json --by-kind --json\n\n"
      "Each run is a trace written by sluice; a folder, or comma-separated files, written by PyTorch's profiler, one "
      "per rank of one pipeline, with the PP: ranges of torch.distributed.pipelining; a timeline of ByteDance's or a "
      "folder "
      "of Primus's pipeline logs, of which one step of the first replica is read; or a scenario file, which is "
      "simulated. Relative differences are (second - first) / first. Ops that occur in only one run are listed; runs "
      "with different stages, microbatches or slices are rejected without --by-kind.");
  command->group("Predict and plan");
  command->footer(
      "Exit codes: 0 success, 2 wrong input, 5 the makespans differ by more than --tolerance, 10 no verdict: a run was "
      "measured with more workers than cores.");
  const auto options = std::make_shared<CompareOptions>();
  command->add_option("first", options->first, "First run, by convention the prediction")->required();
  command->add_option("second", options->second, "Second run, by convention the measurement")->required();
  command->add_flag("--json", options->json, "Print one JSON document (sluice.comparison/1)");
  command
      ->add_option("--tolerance", options->tolerance,
                   "Maximum difference of the makespans relative to the first, such as 10% or 0.1 (default: none)")
      ->transform(fraction());
  add_output(*command, "--trace", options->trace,
             "Write both timelines to one Chrome trace; gzipped if the name ends in .gz");
  command
      ->add_option("--top", options->top,
                   "Number of ops with the largest differences to list, 0 to 1000000 (default 10)")
      ->check(CLI::Range(0, 1000000));
  command->add_option(
      "--step", options->step,
      "Iteration of a trace with several: its ProfilerStep, or its index from 0, or the number of a step in "
      "timelines of ByteDance and Primus; traces with one "
      "iteration ignore it (default: the last complete one)");
  command->add_flag("--by-kind", options->by_kind,
                    "Compare only kinds of ops and ranks, also of different schedules (default: off)");
  return {command, [options] { return compare_command(*options); }};
}

}  // namespace sluice::tools
