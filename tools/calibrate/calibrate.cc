#include "tools/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/errors.h"
#include "tools/calibrate/calibrate_correction.h"
#include "tools/command/scenario_flags.h"

namespace sluice::tools {
namespace {

// Throws InputError for a column to ignore that no table has.
void check_ignored(const CatalogueRequest& request) {
  std::vector<CsvTable> tables;
  for (const std::string& text : request.tables) {
    const std::string path = measured_file(text).path;
    if (!request.ignored.empty() && path.ends_with(".csv")) tables.push_back(read_csv(path));
  }
  for (const std::string& column : request.ignored) {
    if (std::any_of(tables.begin(), tables.end(), [&](const CsvTable& table) { return table.has(column); })) continue;
    throw InputError(fmt::format("--ignore-columns: no table has a column '{}'", column));
  }
}

void check_no_terms(const CatalogueRequest& request, const char* what) {
  if (request.terms) throw InputError(fmt::format("calibrate: --fit has no effect on {}", what));
}

}  // namespace

std::string calibrate(const CatalogueRequest& request, const CalibrationScenario& scenario) {
  check_ignored(request);
  const nlohmann::json& base = scenario.base;
  if (is_kernel_times(request.tables.front())) {
    if (!base.empty()) {
      throw InputError("calibrate: --scenario and the flags of a scenario have no effect on kernel times");
    }
    check_no_terms(request, "kernel times");
    return calibrate_kernel_times(request);
  }
  if (measures_kernels_or_links(request.tables.front())) {
    check_no_terms(request, "timed kernels and collectives");
    return calibrate_kernels_and_links(request);
  }
  const std::string folder = ScenarioFlags::folder_of(scenario.file);
  const bool has_model =
      base.contains("model") && (base.at("model").is_string() || base.at("model").contains("num_layers"));
  const auto has_own = [](const std::string& text) { return !measured_file(text).scenario.empty(); };
  if (!base.empty() && std::all_of(request.tables.begin(), request.tables.end(), has_own)) {
    throw InputError(
        "calibrate: --scenario and the flags of a scenario have no effect: each file has its own (FILE=...)");
  }
  if (!request.constants.empty()) {
    check_no_terms(request, "--constants");
    return calibrate_constants(request, base, folder);
  }
  CorrectionRequest correction{.measured = request.tables,
                               .ignored = request.ignored,
                               .terms = request.terms.value_or(CorrectionTerms::automatic),
                               .skip = scenario.skip,
                               .output = request.output,
                               .json = request.json};
  if (scenario.file.empty() && !has_model) correction.scenario_of_log = scenario.of_log;
  return calibrate_correction(correction, base, folder);
}

}  // namespace sluice::tools
