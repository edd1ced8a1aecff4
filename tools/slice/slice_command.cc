#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/command.h"
#include "tools/command/interrupt.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"
#include "tools/slice/slice_balance.h"
#include "tools/slice/slice_cut.h"
#include "tools/slice/slice_output.h"

namespace sluice::tools {
namespace {

struct SliceOptions {
  SliceRequest request;
  bool json = false;
  std::string output;
  std::unique_ptr<ScenarioFlags> flags;
};

int slice_command(SliceOptions& options) {
  SliceRequest& request = options.request;
  const nlohmann::json document = options.flags->document(request.file);
  ScenarioFlags::check_file(request.file, document);
  ScenarioFlags::print_notes(request.file);
  if (request.joint > 0 && !options.output.empty()) {
    throw InputError("slice: --joint excludes -o: it has one cut per part of the batch");
  }
  const bool simulates = !request.schedule.empty() || request.balance;
  if (!simulates) options.flags->check_read(kSlice, "slice", "--for or --balance");
  print_message(ScenarioFlags::unused(request.file, "slice", simulates ? kSimulate : kSlice));
  std::optional<Interrupt> interrupt;
  if (simulates) request.stop = interrupt.emplace().flag();
  const SliceCut cut = cut_slices(request, document);
  print_message(cut.assumed);
  if (!options.output.empty() && cut.feasible) {
    const bool json = options.output.ends_with(".json");
    write_file_whole(options.output, request.balance ? batch_lengths_text(cut.batch, json)
                                                     : lengths_text(cut.lengths, cut.schedule, json));
  }
  fmt::print("{}", options.json ? json_text(cut.json) : cut.table);
  if (cut.interrupted) return Interrupt::exit_code();
  return cut.feasible ? kDone : kNotFeasible;
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
      "  sluice slice --times chunks.csv --pp 4 --seq-length 131072\n"
      "  sluice slice examples/gpt-2.7b-seq1f1b-a100.json --for seq1f1b -o cut.json\n"
      "  sluice slice scenario.json --balance --lengths lengths.txt -o balanced.txt\n\n"
      "Without --for, it solves TeraPipe's problem exactly: one microbatch passes through K equal pipeline cells in "
      "time sum(t) + (K - 1) max(t), with t the time of a slice on the slowest stage, and separate maxima for forward "
      "and backward. The latency of transfers is independent of the cut and reported separately. With --for, it "
      "searches the cut with the fastest simulated iteration that fits in memory, and reports the gap to a lower "
      "bound. With --balance, it distributes documents of different length over microbatches and replicas, orders "
      "the microbatches, and reports what each saves.");
  command->group("Predict and plan");
  command->footer(
      "Exit codes: 0 success, 2 wrong input, 3 no cut fits in memory, 4 invalid schedule, 130 "
      "interrupted, 143 ended by SIGTERM. The last two print the best cut of --for so far.");
  const auto options = std::make_shared<SliceOptions>();
  command->add_option("scenario", options->request.file, "Scenario file (docs/formats.md); flags override its keys");
  command
      ->add_option(
          "--times", options->request.times,
          "Table of slice times (sluice.slice_times/1), or .csv of measured chunks (tokens, context, seconds), to "
          "use instead of a scenario, for --pp cells")
      ->type_name(kReadFile);
  command->add_option("--for", options->request.schedule,
                      "Minimize the simulated iteration time of this schedule family; --slices fixes the number of "
                      "slices");
  command->add_flag("--backward", options->request.backward,
                    "Minimize the time of forward and backward (default: forward only)");
  command
      ->add_option(
          "--algorithm1", options->request.algorithm1_ms,
          "Use TeraPipe's Algorithm 1 as published, with this epsilon in ms, 0 to 1e9; the paper uses 0.1 (default: "
          "off)")
      ->check(number_from(0, 1e9));
  command->add_flag("--equal-flops", options->request.balanced,
                    "Cut into --slices slices of equal FLOPs under causal attention (default: off)");
  command->add_flag("--balance", options->request.balance,
                    "Compare packings and orders of the documents of --lengths in the scenario's schedule, or that of "
                    "--for; --pack limits what is compared (default: off)");
  command
      ->add_option("--joint", options->request.joint,
                   "Cut a batch of this many sequences, 1 to 4096, into parts, and each part into slices "
                   "(default: off)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option(
          "--granularity", options->request.granularity,
          "Slice lengths are multiples of this number of tokens, 1 to 1073741824, except the last (default: the "
          "smallest power of two with at most 256 multiples; --equal-flops: 128 or 1)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command->add_option("--slices", options->request.slices, "Number of slices, 1 to 32767 (default: the fastest number)")
      ->check(CLI::Range(1, 32767));
  command
      ->add_option("--max-slices", options->request.max_slices,
                   "Maximum number of slices, 1 to 32767 (default: no limit; --for: 16)")
      ->check(CLI::Range(1, 32767));
  command
      ->add_option(
          "--time-budget", options->request.time_budget_s,
          "Search time of --for and --balance in seconds, 0 to 1000000 (default: --for 10, --balance no limit)")
      ->check(number_from(0, 1e6));
  command->add_flag("--json", options->json, "Print one JSON document (sluice.slice/1)");
  add_output(*command, "-o,--output", options->output,
             "Write the lengths to this file: a scenario's \"schedule\" if the name ends in .json, otherwise "
             "a,b,c for simulate --slice-lengths; of --balance, the documents for simulate --lengths");
  options->flags = std::make_unique<ScenarioFlags>(*command, kSlice);
  ScenarioFlags::add_imports(*command, options->request.file);
  return {command, [options] {
            return options->flags->naming_flags(options->request.file, [&] { return slice_command(*options); });
          }};
}

}  // namespace sluice::tools
