#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "exec/watch/watchdog.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/command.h"
#include "tools/command/messages.h"
#include "tools/command/mpi_ranks.h"
#include "tools/command/outputs.h"
#include "tools/run/run_flags.h"
#include "tools/run/run_place.h"
#include "tools/run/run_watch.h"

namespace sluice::tools {
namespace {

struct ProfileOptions {
  std::unique_ptr<RunFlags> flags;
  ProfilingFlags profiling;
  std::string output;
  RunPlaceFlags place;
  WatchFlags watch;
  bool json = false;
  bool like = false;  // only for the help: with it, add_profile_like_command takes the place of this command
};

std::string milliseconds(double seconds) { return fmt::format("{:.4f}", 1e3 * seconds); }

// Prints one row per part and slice, one column per kind.
void print_samples(const Profile& profile) {
  fmt::print("{:<9} {:>7} {:>8}  {:>19}  {:>19}  {:>19}  {:>19}\n", "ms", "tokens", "prefix", "F", "B", "I", "W");
  std::vector<const ProfileSample*> rows;
  for (const ProfileSample& sample : profile.samples) {
    if (sample.kind == OpKind::F) rows.push_back(&sample);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const ProfileSample* a, const ProfileSample* b) {
    return std::tuple(a->part, a->tokens, a->context) < std::tuple(b->part, b->tokens, b->context);
  });
  for (const ProfileSample* row : rows) {
    fmt::print("{:<9} {:>7} {:>8}", to_string(row->part), row->tokens, row->context);
    int missing = 0;  // kinds before this one
    for (const OpKind kind : {OpKind::F, OpKind::B, OpKind::I, OpKind::W}) {
      ++missing;
      for (const ProfileSample& sample : profile.samples) {
        if (sample.part != row->part || sample.kind != kind || sample.tokens != row->tokens ||
            sample.context != row->context) {
          continue;
        }
        fmt::print("{:{}}  {:>9} ± {:<7}", "", 21 * std::max(0, missing - 1), milliseconds(sample.seconds),
                   milliseconds(sample.spread_s));
        missing = 0;
      }
    }
    fmt::print("\n");
  }
}

void print_passes_and_links(const Profile& profile) {
  for (const ProfilePass& pass : profile.passes) {
    fmt::print("{:<9} {:>12} parameters  {:>9} ms\n", to_string(pass.pass), pass.parameters,
               milliseconds(pass.seconds));
  }
  for (const ProfileTransfer& transfer : profile.transfers) {
    fmt::print("{:<9} {:>12} bytes       {:>9} ms\n", "message", transfer.bytes, milliseconds(transfer.seconds));
  }
  for (const ProfileSum& sum : profile.sums) {
    fmt::print("{:<10} {:>11} bytes       {:>9} ms over {} ranks\n", "all-reduce", sum.bytes, milliseconds(sum.seconds),
               sum.ranks);
  }
}

int profile_command(const ProfileOptions& options) {
  const MpiRanks ranks(options.watch.start_limit());
  const HeldSignals held;
  try {
    RunPlace place(options.place, ranks);
    const Scenario scenario = options.flags->scenario();
    const RunPlan plan(options.flags->spec(scenario, place), options.flags->schedule(scenario, 1));
    const RunPlan* const plans[] = {&plan};
    const TokenSource tokens = options.flags->tokens(plan);
    const ProfilingSpec spec = profiling_spec(plans, options.profiling, place, tokens);
    if (place.first()) options.flags->print_ignored("profile");
    place.open(plan);
    RunWatch watch(options.watch, place, ranks);
    Profile profile;
    const int code = watch.run([&] { profile = measured_profile(spec, plan, place, watch.supervision()); });
    if (code != kDone || !place.first()) return code;
    place.print_library_notes();
    if (profile.waited_for_cores) print_message("warning: " + std::string(kWaitedForCores));
    if (!options.output.empty()) write_file_whole(options.output, to_json_text(profile));
    if (options.json) {
      fmt::print("{}", to_json_text(profile));
      return kDone;
    }
    fmt::print("{}: {}, {}, microbatches of {} sequence{}, tensor-parallel size {}\n\n", profile.machine, profile.model,
               profile.dtype, spec.sequences, spec.sequences == 1 ? "" : "s", spec.tensor_parallel);
    print_samples(profile);
    fmt::print("\n");
    print_passes_and_links(profile);
    if (!options.output.empty()) fmt::print("\nsluice fit {} -o cost.json\n", options.output);
    return kDone;
  } catch (...) {
    if (is_first_process(ranks)) throw;
    return kWrongInput;  // the first process reports the error
  }
}

}  // namespace

Subcommand add_profile_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "profile",
      "Measure the op times of a model on this machine.\n\n"
      "Examples:\n"
      "  sluice profile -o profile.json\n"
      "  sluice fit profile.json -o cost.json\n"
      "  sluice profile --num-layers 8 --hidden-size 256 --num-attention-heads 8 --vocab-size 256 \\\n"
      "      --seq-length 512 --mbs 1 --pp 2 --time-budget 60 -o profile.json\n"
      "  mpirun -n 4 sluice profile --pp 2 --tp 2 -o profile.json\n"
      "  sluice profile --like examples/llama3-8b-zbv-h100.json -o kernels.py\n\n"
      "All ranks measure concurrently, because ranks of a run share cores, caches and clocks. It measures F, B, I and "
      "W "
      "of the embedding, a layer and the head over slice lengths and prefixes, in varying order until the time is up, "
      "and reports medians and half the interquartile range. It also measures the executor's overhead per op (stage), "
      "optimizer steps, gradient norms, messages and all-reduces. Of layers with experts it measures the parts "
      "attention (with the router), dispatch, experts and combine, with the exchanges between ranks; tokens, weights "
      "and inputs are those of the first step of a run, so that experts receive as many rows.");
  command->group("Run and measure");
  command->footer(
      fmt::format("Exit codes: 0 success, 2 wrong input, 3 not enough memory, 4 invalid schedule, {}.", kFailureCodes));
  const auto options = std::make_shared<ProfileOptions>();
  options->flags =
      std::make_unique<RunFlags>(*command, std::initializer_list<std::string_view>{"--joint-overlap", "--weave"});
  options->profiling.add_to(*command);
  const char* kProfile = "Profile";
  add_output(*command, "-o,--output", options->output, "Write the profile (sluice.profile/1, docs/formats.md)")
      ->group(kProfile);
  command->add_flag("--json", options->json, "Print the profile as JSON")->group(kProfile);
  command
      ->add_flag("--like", options->like,
                 "Measure nothing here: list the GEMM and attention kernels of a scenario and write a PyTorch script "
                 "that times them on a GPU ('sluice profile --like --help')")
      ->group(kProfile);
  options->place.add_to(*command, kProfile);
  options->watch.add_to(*command);
  return {command, [options] { return options->flags->naming_flags([&] { return profile_command(*options); }); }};
}

}  // namespace sluice::tools
