#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/calibrate/calibrate.h"
#include "tools/calibrate/calibrate_catalogue.h"
#include "tools/command/command.h"
#include "tools/command/outputs.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

struct CalibrateOptions {
  CatalogueRequest request;
  std::string scenario;
  std::string fit;
  int skip = 2;
  std::unique_ptr<ScenarioFlags> flags;
};

int calibrate_command(const CalibrateOptions& options) {
  const nlohmann::json base = options.flags->document(options.scenario);
  CatalogueRequest request = options.request;
  if (options.fit == "auto") request.terms = CorrectionTerms::automatic;
  if (options.fit == "scale") request.terms = CorrectionTerms::scale;
  if (options.fit == "fixed") request.terms = CorrectionTerms::fixed;
  const std::string text = calibrate(
      request, {.base = base, .file = options.scenario, .skip = options.skip, .of_log = [&](const std::string& log) {
                  return options.flags->document(log);
                }});
  fmt::print("{}", text);
  return kDone;
}

}  // namespace

Subcommand add_calibrate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "calibrate",
      "Fit the analytic cost model to measured iterations, kernels or collectives.\n\n"
      "Examples:\n"
      "  sluice calibrate ours.csv --scenario ours.json -o ours.calibration.json\n"
      "  sluice calibrate mbs1.log=mbs1.json mbs2.log=mbs2.json -o ours.calibration.json\n"
      "  sluice calibrate one.csv --scenario ours.json --fit fixed -o ours.calibration.json\n"
      "  sluice calibrate gemms.csv all_reduces.csv -o catalogue\n"
      "  sluice calibrate iterations.csv --scenario ours.json \\\n"
      "      --constants gpu/memory_efficiency,software/issue_s -o ours\n"
      "  sluice calibrate a.csv=a.json b.csv=b.json \\\n"
      "      --constants gpu/gemm/peak_fraction,inter_node/collective_efficiency@2\n"
      "  sluice calibrate kernel_times.json -o kernels.json\n\n"
      "By default, it keeps of measured iterations what other settings are likely to have in common with them: a "
      "scale, "
      "a fixed time per iteration, both or nothing. One to three measurements give a scale or nothing, more any of "
      "them, by cross-validation; few or contradictory ones are shrunk toward nothing. --fit scale and --fit fixed fit "
      "exactly that, without shrinkage. The input is CSV (iteration_ms or iteration_s "
      "besides pp, tp, dp, mbs, gbs, ...) or Megatron-LM "
      "logs ('elapsed time per iteration (ms)'). A log that prints its arguments needs no scenario, only --cluster; "
      "with "
      "one they must match. 'sluice simulate "
      "--calibration FILE' then prints a 90 % interval. A negative fixed time means that predictions have too much "
      "time "
      "that does not grow with the number of microbatches.\n\n"
      "The columns of a table determine its kind (docs/formats.md). From timed kernels and collectives, it fits the "
      "constants of their GPU and links, and -o names a folder for catalogue files. With --constants, it fits these "
      "constants to measured iterations by simulating every row, and -o names a prefix: NAME.node.json for --cluster "
      "and NAME.software.json for --software. NAME@2 fits a constant to the rows of the second table only; NAME=0.9 "
      "sets the prior value (default: the value of the scenario). Errors are printed for fitted and for held-out "
      "rows. JSON files are times from the script of 'sluice profile --like': they are checked and joined to one file "
      "for --kernel-times.");
  command->group("Run and measure");
  command->footer(fmt::format("Constants for measured iterations: {}.\n\nExit codes: 0 success, 2 wrong input.",
                              fmt::join(constant_names(), ", ")));
  const auto options = std::make_shared<CalibrateOptions>();
  command
      ->add_option(
          "measured", options->request.tables,
          "CSV tables, Megatron-LM logs, or kernel times (.json); FILE=scenario.json sets what a file does not "
          "specify")
      ->required();
  command->add_option("--scenario", options->scenario, "Scenario file for what the rows do not specify (default: none)")
      ->type_name(kReadFile);
  command
      ->add_option("--constants", options->request.constants,
                   "Constants to fit to measured iterations, as a,b,c (default: fit a correction of predicted times)")
      ->delimiter(',');
  command
      ->add_option("--fit", options->fit,
                   "What is fitted to measured iterations: a scale; a fixed time that predictions lack; or auto, what "
                   "improves predictions of other settings (default: auto)")
      ->check(CLI::IsMember({"auto", "scale", "fixed"}));
  command
      ->add_option("--ignore-columns", options->request.ignored,
                   "Columns of tables of iterations to ignore, as a,b,c (default: source, comment, note, notes, name; "
                   "other unknown columns are errors)")
      ->delimiter(',');
  command
      ->add_option("--skip", options->skip, "Number of leading iterations of a log to ignore, 0 to 1000000 (default 2)")
      ->check(CLI::Range(0, 1000000));
  command
      ->add_option("--folds", options->request.folds, "Number of folds of the cross-validation, 2 to 1000 (default 10)")
      ->check(CLI::Range(2, 1000));
  add_output(*command, "-o,--output", options->request.output, "File, folder or prefix of the results (default: none)");
  command->add_flag("--json", options->request.json,
                    "Print one JSON document (sluice.calibrated/1; kernel times: sluice.kernel_times/1)");
  options->flags = std::make_unique<ScenarioFlags>(*command, kComplete);
  ScenarioFlags::add_imports(*command, options->scenario, "--scenario");
  return {command, [options] { return calibrate_command(*options); }};
}

}  // namespace sluice::tools
