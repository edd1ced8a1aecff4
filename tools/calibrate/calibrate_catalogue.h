#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/namespaces.h"

namespace sluice::tools {

// A measured file, and the scenario of what it does not say: "FILE", or "FILE=scenario.json".
struct MeasuredFile {
  std::string path;
  std::string scenario;  // empty: the command's own
};
MeasuredFile measured_file(const std::string& text);

// What of the catalogue is to be fitted to which tables.
struct CatalogueRequest {
  std::vector<std::string> tables;     // "measured.csv", or "measured.csv=scenario.json"
  std::vector<std::string> constants;  // names; "name@2": of the second table alone; "name=0.9": guess
  int folds = 10;
  std::string output;  // kernels and links: a folder; constants: what the files' names begin with; empty: none
  bool json = false;
};

// Whether the table holds kernels or collectives, which say by themselves what to fit.
bool measures_kernels_or_links(const std::string& table);

// Fits constants of GPUs and links to timed kernels and collectives, prints them and their errors, and writes the
// catalogue's files with them into the folder. Throws InputError.
int calibrate_kernels_and_links(const CatalogueRequest& request);

// Names of the constants that measured iterations can be asked for.
std::vector<std::string> constant_names();

// Fits `constants` to measured iterations; `base` is the scenario of tables that come without one, with paths from
// `folder`. Throws InputError.
int calibrate_constants(const CatalogueRequest& request, const nlohmann::json& base, const std::string& folder);

}  // namespace sluice::tools
