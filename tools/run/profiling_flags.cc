#include "tools/run/profiling_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/run/core_wait.h"
#include "model/errors.h"
#include "tools/command/number_flags.h"
#include "tools/command/progress.h"

namespace sluice::tools {
namespace {

void add_cell(std::vector<ProfileCell>& cells, const ProfileCell& cell) {
  if (std::find(cells.begin(), cells.end(), cell) == cells.end()) cells.push_back(cell);
}

std::vector<ProfileCell> requested_cells(const ProfilingFlags& flags, std::int64_t sequence_length) {
  if (flags.tokens.empty() && flags.contexts.empty()) return profile_grid(sequence_length);
  std::vector<std::int64_t> lengths = flags.tokens;
  if (lengths.empty()) {
    for (const ProfileCell& cell : profile_grid(sequence_length)) lengths.push_back(cell.tokens);
  }
  std::vector<ProfileCell> cells;
  for (const std::int64_t tokens : lengths) {
    if (tokens > sequence_length) {
      throw InputError(
          fmt::format("--tokens: expected at most {} tokens, the sequence length, got {}", sequence_length, tokens));
    }
    // The fit needs samples without a prefix.
    add_cell(cells, {.tokens = tokens});
    for (const std::int64_t context : flags.contexts) {
      if (tokens + context <= sequence_length) add_cell(cells, {.tokens = tokens, .context = context});
    }
  }
  return cells;
}

}  // namespace

void ProfilingFlags::add_to(CLI::App& command) {
  const char* kProfile = "Profile";
  command
      .add_option(
          "--tokens", tokens,
          "Slice lengths to measure in tokens, as a,b,c, 1 to the sequence length (default: the sequence length, its "
          "half, quarter and eighth)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
      ->group(kProfile);
  command
      .add_option("--contexts", contexts,
                  "Prefix lengths to measure in tokens, as a,b,c, at least 0, besides none (default: the starts of "
                  "even slices)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
      ->group(kProfile);
  command.add_option("--time-budget", time_budget_s, "Measurement time in seconds, 0 to 1000000 (default 10)")
      ->check(number_from(0, 1e6))
      ->group(kProfile);
}

ProfilingSpec profiling_spec(std::span<const RunPlan* const> plans, const ProfilingFlags& flags, const RunPlace& place,
                             const TokenSource& tokens) {
  const RunPlan& first = *plans.front();
  ProfilingSpec spec{.model = first.spec().model, .precision = first.spec().precision, .kernels = first.spec().kernels};
  spec.recompute = first.spec().recompute;
  spec.attention = first.spec().attention;
  spec.sequences = first.schedule().shapes()[0].sequences;
  spec.sequence_length = first.sequence_length();
  spec.tensor_parallel = first.layout().tensor;
  spec.data_parallel = first.layout().data;
  spec.seed = first.spec().seed;
  spec.expert_parallel = first.layout().expert;
  spec.tokens = &tokens;
  spec.microbatches = first.schedule().num_microbatches();
  spec.budget_s = flags.time_budget_s;
  spec.most_wait = kMostCoreWait;
  spec.link = place.transport_name();
  spec.cells = requested_cells(flags, spec.sequence_length);
  for (const RunPlan* plan : plans) {
    for (const StageContents& contents : plan->contents()) spec.layers = std::max(spec.layers, contents.layers);
    for (const MicrobatchShape& shape : plan->schedule().shapes()) {
      if (shape.sequences != spec.sequences) {
        throw InputError(fmt::format("expected microbatches of one size for a profile, got {} and {} sequences",
                                     spec.sequences, shape.sequences));
      }
      for (int slice = 0; slice < shape.num_slices(); ++slice) {
        add_cell(spec.cells, {.tokens = shape.slice_lengths[slice]});
        add_cell(spec.cells, {.tokens = shape.slice_lengths[slice], .context = shape.context(slice)});
      }
    }
  }
  return spec;
}

Profile measured_profile(const ProfilingSpec& spec, const RunPlan& plan, const RunPlace& place,
                         const Supervision& supervision) {
  Progress progress("measuring, seconds", static_cast<std::int64_t>(std::max(1.0, spec.budget_s)));
  const auto observer = [&](double seconds) { progress.done(static_cast<std::int64_t>(seconds)); };
  Transport* const transport = place.transport();
  const WatchedPlans watched{{&plan}, supervision};
  const int workers = plan.layout().size();
  Profile profile = transport == nullptr ? profile_with_threads(spec, workers, observer, place.devices(), watched)
                                         : profile_as_process(spec, *transport, observer, place.own_device(), watched);
  profile.source = "measured";
  profile.machine = place.machine(workers);
  return profile;
}

}  // namespace sluice::tools
