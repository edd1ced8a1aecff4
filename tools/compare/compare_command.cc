#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/errors.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "sim/prediction.h"
#include "tools/command/automatic.h"
#include "tools/command/command.h"
#include "tools/compare/comparison_output.h"
#include "traces/chrome_trace.h"
#include "traces/comparison.h"
#include "traces/side_by_side.h"
#include "traces/trace_read.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string first;
  std::string second;
  bool json = false;
  bool by_kind = false;
  std::string tolerance;
  std::string trace;
  std::size_t top = 10;
  std::optional<std::int64_t> step;
};

// "10%", "10 %" or "0.1", as a share.
double parse_tolerance(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  if (error != std::errc{} || (!rest.empty() && rest != "%") || !std::isfinite(value) || value < 0) {
    throw InputError(fmt::format("--tolerance: expected a share such as 10% or 0.1, got '{}'", text));
  }
  return rest == "%" ? value / 100 : value;
}

// What one of the words stands for.
struct Side {
  std::string what;  // "simulated", "a trace", ...
  TraceRun read;
};

Side simulated_side(const std::string& path) {
  namespace fs = std::filesystem;
  const Scenario scenario =
      scenario_from_json(parse_json(read_file(path), path), path, fs::path(path).parent_path().string());
  const PlannedSetup planned = planned_with_progress(scenario);
  const Prediction prediction = predict(*planned.setup, {.keep_memory = true});
  Side side{.what = "simulated"};
  const OpGraph& graph = planned.setup->graph();
  side.read.run =
      rows_of(graph, prediction.timeline, graph.has_bytes() ? prediction.memory : std::vector<RankMemory>{});
  side.read.notes.push_back(fmt::format("{} ranks", side.read.run.num_ranks));
  return side;
}

Side side_of(const std::string& word, const Options& options) {
  const std::vector<std::string> files = trace_files(word);
  if (files.size() == 1 && !is_trace_file(files[0])) return simulated_side(files[0]);
  return {.what = "read", .read = read_trace_run(files, {.step = options.step})};
}

std::string notes_of(const std::string& name, const std::string& word, const Side& side) {
  std::string out = fmt::format("{}: {} {}", name, side.what, word);
  for (const std::string& note : side.read.notes) out += "; " + note;
  return out + "\n";
}

int compare_command(const Options& options) {
  const bool limited = !options.tolerance.empty();
  const double tolerance = limited ? parse_tolerance(options.tolerance) : 0;
  const Side first = side_of(options.first, options);
  const Side second = side_of(options.second, options);
  const RunRows& a = first.read.run;
  const RunRows& b = second.read.run;
  ComparisonOptions how{.top = options.top, .by_kind = options.by_kind};
  if (!options.by_kind) {
    const std::string difference = first_difference(a, b, {.first = options.first, .second = options.second});
    if (!difference.empty()) {
      throw InputError(fmt::format(
          "compare: expected two runs of the same stages, microbatches and slices: {}; --by-kind compares kinds of ops "
          "alone",
          difference));
    }
  }
  const Comparison comparison = compare(a, b, how);
  if (!options.trace.empty()) {
    const std::string warning = trace_size_warning(2 * (std::ssize(a.rows) + std::ssize(b.rows)));
    if (!warning.empty()) fmt::print(stderr, "sluice: {}\n", warning);
    write_side_by_side_file(options.trace, {TraceSide{how.first, &a}, TraceSide{how.second, &b}});
  }
  const std::optional<double> difference = comparison.makespan_difference();
  const bool within = !limited || (difference && std::abs(*difference) <= tolerance);
  if (options.json) {
    nlohmann::ordered_json document = comparison_document(comparison);
    document["sources"] = {{"first", {{"path", options.first}, {"notes", first.read.notes}}},
                           {"second", {{"path", options.second}, {"notes", second.read.notes}}}};
    if (limited) {
      document["tolerance"] = tolerance;
      document["within_tolerance"] = within;
    }
    fmt::print("{}\n", document.dump(2));
  } else {
    fmt::print("{}{}\n{}", notes_of(how.first, options.first, first), notes_of(how.second, options.second, second),
               comparison_table(comparison));
    if (limited) {
      fmt::print("makespan {} the tolerance of {:.3g} %\n", within ? "within" : "OUTSIDE", 100 * tolerance);
    }
  }
  return within ? kDone : kOutsideTolerance;
}

}  // namespace

Subcommand add_compare_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "Compares two timelines, op by op: predicted and measured, or any two.\n\n"
      "Examples:\n"
      "  sluice compare predicted.json.gz measured.json.gz\n"
      "  sluice compare scenario.json traces/iteration_10/ --tolerance 10%\n"
      "  sluice compare scenario.json rank0.json.gz,rank1.json.gz --trace both.json.gz\n"
      "  sluice compare examples/llama3-8b-zbv-h100.json other-schedule.json --by-kind --json\n\n"
      "Each of the two is a trace that sluice wrote; a folder, or files separated by commas, that PyTorch's profiler "
      "wrote, one for each rank of one pipeline, with the PP: ranges of torch.distributed.pipelining; or a scenario "
      "file, which is simulated. Relative differences are (second - first) / first. Names that occur in only one of "
      "the "
      "runs are told; runs of other stages, microbatches or slices are refused unless --by-kind.\n\n"
      "Exit codes: 0 done, 2 wrong input, 5 the makespan differs by more than --tolerance");
  const auto options = std::make_shared<Options>();
  command->add_option("first", options->first, "the first run, by convention the predicted one")->required();
  command->add_option("second", options->second, "the second run, by convention the measured one")->required();
  command->add_flag("--json", options->json, "one JSON document (sluice.comparison/1) on standard output");
  command->add_option("--tolerance", options->tolerance,
                      "exit with 5 if the makespans are further apart: 10% or 0.1 of the first");
  command->add_option("--trace", options->trace,
                      "write one Chrome trace with both timelines; gzipped if the name ends in .gz");
  command->add_option("--top", options->top, "how many of the ops that differ most to name (default 10)")
      ->check(CLI::Range(0, 1000000));
  command->add_option("--step", options->step,
                      "which iteration of a trace that has several: its ProfilerStep, or its place from 0 (default: "
                      "the last whole one)");
  command->add_flag("--by-kind", options->by_kind, "compare kinds of ops and ranks alone, whatever the schedules");
  return {command, [options] { return compare_command(*options); }};
}

}  // namespace sluice::tools
