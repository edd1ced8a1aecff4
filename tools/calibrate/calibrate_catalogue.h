#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/input/csv.h"
#include "sim/calibration/correction_fit.h"

namespace sluice::tools {

// A measured file, and the scenario for what it does not specify: "FILE", or "FILE=scenario.json".
struct MeasuredFile {
  std::string path;
  std::string scenario;  // empty: the scenario of the command
};
MeasuredFile measured_file(const std::string& text);

// Reads a table of measured iterations without the columns `ignored`. Throws InputError for other unknown columns.
CsvTable read_iteration_table(const std::string& path, const std::vector<std::string>& ignored);

// Throws InputError naming the files if they have no measured iteration.
void check_any_measured(const std::vector<std::string>& files, std::size_t rows);

// The constants of the catalogue to fit, and the tables to fit them to.
struct CatalogueRequest {
  std::vector<std::string> tables;     // "measured.csv", or "measured.csv=scenario.json"
  std::vector<std::string> constants;  // names; "name@2": for the second table only; "name=0.9": prior value
  std::vector<std::string> ignored;    // columns of tables of iterations
  int folds = 10;
  std::optional<CorrectionTerms> terms;  // of a correction; none: automatic
  std::string output;                    // kernels and links: a folder; constants: prefix of file names; empty: none
  bool json = false;
};

// Returns whether the table holds timed kernels or collectives, whose columns determine the constants to fit.
bool measures_kernels_or_links(const std::string& table);

// Fits constants of GPUs and links to timed kernels and collectives, and writes the catalogue's files into the output
// folder. Returns the constants with their errors as text or JSON. Throws InputError.
std::string calibrate_kernels_and_links(const CatalogueRequest& request);

// Returns the names of the constants that can be fitted to measured iterations.
std::vector<std::string> constant_names();

// Fits `constants` to measured iterations. `base` is the scenario of tables without one of their own, with paths
// relative to `folder`. Returns them with their errors as text or JSON. Throws InputError.
std::string calibrate_constants(const CatalogueRequest& request, const nlohmann::json& base, const std::string& folder);

// Whether the file contains kernel times, by its name: JSON without a scenario of its own.
bool is_kernel_times(const std::string& table);
// Checks kernel times and joins those of several files to one for --kernel-times. Returns their errors as text, or the
// times as JSON.
std::string calibrate_kernel_times(const CatalogueRequest& request);

}  // namespace sluice::tools
