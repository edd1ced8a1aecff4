#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/errors.h"
#include "tools/calibrate/calibrate_catalogue.h"
#include "tools/calibrate/calibrate_correction.h"
#include "tools/command/command.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

struct Options {
  CatalogueRequest request;
  std::string scenario;
  int skip = 2;
  std::unique_ptr<ScenarioFlags> flags;
};

int calibrate_command(const Options& options) {
  if (measures_kernels_or_links(options.request.tables.front())) return calibrate_kernels_and_links(options.request);
  const std::string folder = std::filesystem::path(options.scenario).parent_path().string();
  const nlohmann::json base = options.flags->document(options.scenario);
  if (!options.request.constants.empty()) return calibrate_constants(options.request, base, folder);
  return calibrate_correction({.measured = options.request.tables,
                               .skip = options.skip,
                               .output = options.request.output,
                               .json = options.request.json},
                              base, folder);
}

std::string known_constants() {
  std::string out;
  for (const std::string& name : constant_names()) out += (out.empty() ? "" : ", ") + name;
  return out;
}

}  // namespace

Subcommand add_calibrate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "calibrate",
      "Fits the analytic cost model to measurements.\n\n"
      "Examples:\n"
      "  sluice calibrate ours.csv --scenario ours.json -o ours.calibration.json\n"
      "  sluice calibrate mbs1.log=mbs1.json mbs2.log=mbs2.json -o ours.calibration.json\n"
      "  sluice calibrate products.csv all_reduces.csv -o catalogue\n"
      "  sluice calibrate iterations.csv --scenario ours.json --constants gpu/memory_efficiency,software/issue_s -o "
      "ours\n"
      "  sluice calibrate a.csv=a.json b.csv=b.json --constants "
      "gpu/gemm/peak_fraction,inter_node/collective_efficiency@2\n\n"
      "Your own measured iterations, two or three with different numbers of microbatches, correct predictions by a "
      "scale and a fixed time: a CSV table (iteration_ms or iteration_s beside pp, tp, dp, mbs, gbs, ...) or "
      "Megatron-LM "
      "logs ('elapsed time per iteration (ms)'). 'sluice simulate --calibration FILE' then prints an interval.\n\n"
      "What a table holds is told by its columns (docs/formats.md). Timed kernels and collectives give the constants "
      "of "
      "their GPU and links: -o names a folder for the catalogue's files. Measured iterations give --constants, by "
      "simulating every row; @2 says that a constant is of the second table's rows alone, =0.9 that it is drawn "
      "towards that and not towards what its scenario says; -o names what the files "
      "begin with: NAME.node.json for --cluster and NAME.software.json for --software. Errors are printed for the rows "
      "that were fitted and for rows held out.\n\n"
      "Constants of iterations: " +
          known_constants());
  const auto options = std::make_shared<Options>();
  command
      ->add_option("measured", options->request.tables,
                   "CSV tables, or logs of Megatron-LM; FILE=scenario.json gives what a file does not say")
      ->required();
  command->add_option("--scenario", options->scenario, "what the rows do not say, unless their table names its own");
  command->add_option("--constants", options->request.constants, "what to fit to measured iterations: a,b,c")
      ->delimiter(',');
  command->add_option("--skip", options->skip, "first iterations of a log that are left out (default 2)")
      ->check(CLI::Range(0, 1000000));
  command->add_option("--folds", options->request.folds, "parts of the rows that are held out in turn (default 10)")
      ->check(CLI::Range(2, 1000));
  command->add_option("-o,--output", options->request.output, "write the files with what was found");
  command->add_flag("--json", options->request.json, "one JSON document (sluice.calibrated/1) on standard output");
  options->flags = std::make_unique<ScenarioFlags>(*command);
  return {command, [options] { return calibrate_command(*options); }};
}

}  // namespace sluice::tools
