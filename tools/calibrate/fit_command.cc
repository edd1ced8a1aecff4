#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "model/cost/profile_fit.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/command.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/number_flags.h"
#include "tools/command/outputs.h"
#include "traces/text/quantity_text.h"

namespace sluice::tools {
namespace {

struct FitOptions {
  std::string profile;
  std::string output;
  bool json = false;
  int sequences = 0;
  int tensor_parallel = 0;
  int folds = 5;
  double max_error = kMostFitError;
};

nlohmann::ordered_json error_json(const RelativeError& error) {
  return {{"mean", error.mean}, {"max", error.max}, {"samples", error.samples}};
}

// Returns the held-out error over all curves; empty if none has one.
std::optional<RelativeError> overall(const ProfileFit& fit) {
  RelativeError all;
  for (const CurveFit& curve : fit.curves) {
    if (!curve.held_out) continue;
    all.mean += curve.held_out->mean * curve.held_out->samples;
    all.max = std::max(all.max, curve.held_out->max);
    all.samples += curve.held_out->samples;
  }
  if (all.samples == 0) return std::nullopt;
  all.mean /= all.samples;
  return all;
}

const PassTime& time_of(const ProfileFit& fit, const LinkTimeFit& pass) {
  return *fit.table.pass(pass.name == to_string(PassKind::norm) ? PassKind::norm : PassKind::optimizer);
}

void print_fit_json(const Profile& profile, const ProfileFit& fit) {
  nlohmann::ordered_json out = {{"schema", "sluice.fit/1"},
                                {"profile", profile.source},
                                {"machine", profile.machine},
                                {"sequences", fit.table.sequences},
                                {"tensor_parallel", fit.table.tensor_parallel},
                                {"published_error", kPublishedFitError}};
  if (const auto all = overall(fit)) out["held_out"] = error_json(*all);
  out["curves"] = nlohmann::ordered_json::array();
  for (const CurveFit& curve : fit.curves) {
    nlohmann::ordered_json row = {{"part", to_string(curve.part)},
                                  {"kind", std::string(1, letter(curve.kind))},
                                  {"lengths", curve.alone},
                                  {"pairs", curve.with_context},
                                  {"ctx", fit.table.curve(curve.part, curve.kind)->context},
                                  {"in_sample", error_json(curve.in_sample)}};
    if (curve.held_out) row["held_out"] = error_json(*curve.held_out);
    if (curve.between) row["between_lengths"] = error_json(*curve.between);
    out["curves"].push_back(std::move(row));
  }
  out["links"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < fit.links.size(); ++i) {
    const LinkTime& link = fit.table.links[i];
    nlohmann::ordered_json row = {{"link", link.name},
                                  {"sizes", fit.links[i].sizes},
                                  {"latency_s", link.latency_s},
                                  {"bandwidth_bytes_per_s", link.bandwidth_bytes_per_s},
                                  {"in_sample", error_json(fit.links[i].in_sample)}};
    if (fit.links[i].held_out) row["held_out"] = error_json(*fit.links[i].held_out);
    out["links"].push_back(std::move(row));
  }
  for (const LinkTimeFit& pass : fit.passes) {
    const PassTime& time = time_of(fit, pass);
    out["passes"].push_back({{"pass", pass.name},
                             {"sizes", pass.sizes},
                             {"fixed_s", time.fixed_s},
                             {"parameters_per_s", time.elements_per_s},
                             {"in_sample", error_json(pass.in_sample)}});
  }
  for (std::size_t i = 0; i < fit.sums.size(); ++i) {
    const SumTime& sum = fit.table.sums[i];
    out["sums"].push_back({{"ranks", sum.ranks},
                           {"sizes", fit.sums[i].sizes},
                           {"latency_s", sum.latency_s},
                           {"bandwidth_bytes_per_s", sum.bandwidth_bytes_per_s},
                           {"in_sample", error_json(fit.sums[i].in_sample)}});
  }
  out["warnings"] = fit.warnings;
  fmt::print("{}", json_text(out));
}

std::string percent(const std::optional<RelativeError>& error, double RelativeError::*which) {
  return error ? fmt::format("{:.2f} %", 100 * (*error).*which) : "-";
}

void print_fit(const Profile& profile, const ProfileFit& fit) {
  fmt::print("{}: {} samples, microbatches of {} sequence{}, tensor-parallel size {}\n\n", profile.source,
             profile.samples.size(), fit.table.sequences, fit.table.sequences == 1 ? "" : "s",
             fit.table.tensor_parallel);
  fmt::print("{:<11} {:>7} {:>6}  {:>43}  {:>8}  {:>17}  {:>8}\n", "", "", "", "a0 + a1 i + a2 j + a3 i j (s)",
             "fitted", "held out", "between");
  fmt::print("{:<11} {:>7} {:>6}  {:>10} {:>10} {:>10} {:>10}  {:>8}  {:>8} {:>8}  {:>8}\n", "", "lengths", "pairs",
             "a0", "a1", "a2", "a3", "mean", "mean", "max", "lengths");
  for (const CurveFit& curve : fit.curves) {
    const auto& context = fit.table.curve(curve.part, curve.kind)->context;
    fmt::print("{:<9} {} {:>7} {:>6}  {:>10.3g} {:>10.3g} {:>10.3g} {:>10.3g}  {:>8}  {:>8} {:>8}  {:>8}\n",
               to_string(curve.part), letter(curve.kind), curve.alone, curve.with_context, context[0], context[1],
               context[2], context[3], percent(curve.in_sample, &RelativeError::mean),
               percent(curve.held_out, &RelativeError::mean), percent(curve.held_out, &RelativeError::max),
               percent(curve.between, &RelativeError::mean));
  }
  for (std::size_t i = 0; i < fit.links.size(); ++i) {
    const LinkTime& link = fit.table.links[i];
    fmt::print("link {}: {} sizes, latency {:.3g} us, {:.4g} GB/s, held-out error {} mean, {} max\n", link.name,
               fit.links[i].sizes, 1e6 * link.latency_s, link.bandwidth_bytes_per_s / 1e9,
               percent(fit.links[i].held_out, &RelativeError::mean),
               percent(fit.links[i].held_out, &RelativeError::max));
  }
  for (const LinkTimeFit& pass : fit.passes) {
    const PassTime& time = time_of(fit, pass);
    fmt::print("{}: {} sizes, {:.3g} us and {:.4g} billion parameters/s, mean error {}\n", pass.name, pass.sizes,
               1e6 * time.fixed_s, time.elements_per_s / 1e9, percent(pass.in_sample, &RelativeError::mean));
  }
  for (std::size_t i = 0; i < fit.sums.size(); ++i) {
    const SumTime& sum = fit.table.sums[i];
    fmt::print("{}: {} sizes, latency {:.3g} us, {:.4g} GB/s, mean error {}\n", fit.sums[i].name, fit.sums[i].sizes,
               1e6 * sum.latency_s, sum.bandwidth_bytes_per_s / 1e9,
               percent(fit.sums[i].in_sample, &RelativeError::mean));
  }
  if (const auto all = overall(fit)) {
    fmt::print("\nheld-out error: {:.2f} % mean, {:.2f} % max; TeraPipe reports less than {:.0f} %: {}\n",
               100 * all->mean, 100 * all->max, 100 * kPublishedFitError,
               all->mean < kPublishedFitError ? "within" : "worse");
  } else {
    fmt::print("\ntoo few samples for cross-validation\n");
  }
}

void check_useful(const Profile& profile, const ProfileFit& fit, double max_error) {
  const std::optional<RelativeError> all = overall(fit);
  if (!all || all->mean <= max_error) return;
  throw InputError(
      fmt::format("{}: the fit is useless: its mean error on held-out samples is {:.0f} %, expected at most {:.0f} % "
                  "(--max-error); measure again {}",
                  profile.source, 100 * all->mean, 100 * max_error,
                  profile.waited_for_cores ? "on an idle machine: workers waited for cores"
                                           : "with a longer --time-budget, on an idle machine"));
}

int fit_command(const FitOptions& options) {
  const Profile profile = read_profile(options.profile);
  ProfileChoice choice{.folds = options.folds};
  if (options.sequences > 0) choice.sequences = options.sequences;
  if (options.tensor_parallel > 0) choice.tensor_parallel = options.tensor_parallel;
  const ProfileFit fit = fit_profile(profile, choice);
  check_useful(profile, fit, options.max_error);
  if (profile.waited_for_cores) print_message("warning: " + std::string(kWaitedForCores));
  for (const std::string& warning : fit.warnings) print_message(warning);
  if (!options.output.empty()) write_file_whole(options.output, to_json_text(fit.table));
  if (options.json) {
    print_fit_json(profile, fit);
  } else {
    print_fit(profile, fit);
    if (!options.output.empty()) fmt::print("sluice simulate ... --cost {}\n", options.output);
  }
  return kDone;
}

}  // namespace

Subcommand add_fit_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "fit",
      "Fit a cost file to a profile of measured op times.\n\n"
      "Examples:\n"
      "  sluice fit profile.json -o cost.json\n"
      "  sluice fit profile.json --tensor-parallel 8 --sequences 1 -o cost.json\n"
      "  sluice simulate --schedule seq1f1b --slices 4 --cost cost.json ...\n\n"
      "The time of a slice of i tokens after a prefix of j tokens is t(i, 0) + a0 + a1 i + a2 j + a3 i j. t(i, 0) is "
      "the median of the samples per length, interpolated linearly between lengths. The coefficients are fitted to "
      "the samples with a prefix by least squares of relative errors. If the lengths and prefixes do not determine "
      "all four, a1, then a2, then a0 are set to 0, with a warning. The errors printed are of the fitted samples, of "
      "held-out samples (deterministic cross-validation; above --max-error on average is an error), and of t(i, 0) at "
      "each "
      "length if interpolated from the "
      "others (\"between lengths\").");
  command->group("Run and measure");
  command->footer("Exit codes: 0 success, 2 wrong input.");
  const auto options = std::make_shared<FitOptions>();
  command->add_option("profile", options->profile, "Profile file (sluice.profile/1, docs/formats.md)")->required();
  add_output(*command, "-o,--output", options->output, "Write the cost file (sluice.cost/1)");
  command->add_flag("--json", options->json, "Print one JSON document (sluice.fit/1)");
  command
      ->add_option("--sequences", options->sequences,
                   "Use the samples with this number of sequences per microbatch, 1 to 1048576 (required if the "
                   "profile has several)")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--tensor-parallel", options->tensor_parallel,
                   "Use the samples with this tensor-parallel size, 1 to 65536 (required if the profile has several)")
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--folds", options->folds, "Number of folds of the cross-validation, 2 to 1000 (default 5)")
      ->check(CLI::Range(2, 1000));
  command
      ->add_option("--max-error", options->max_error,
                   "Maximum mean error of held-out samples of a useful fit, such as 50% or 0.5 (default 50%)")
      ->transform(fraction());
  return {command, [options] { return fit_command(*options); }};
}

}  // namespace sluice::tools
