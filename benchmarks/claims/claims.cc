// Runs claims of papers, `claims [FILES OR FOLDERS] [--explain] [--json] [--write-scenarios DIR]`, and prints published
// and predicted values. A claim is a sluice.claim/1 file (docs/formats.md). The exit code does not depend on the
// differences.

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "benchmarks/claims/output.h"
#include "benchmarks/files_in.h"
#include "model/errors.h"

namespace sluice::bench::claims {
namespace {

int run(const std::vector<std::string>& paths, bool explain, bool json, const std::string& folder) {
  std::vector<Claim> claims;
  for (const std::string& file : files_in(paths, ".json")) claims.push_back(read_claim(file));
  std::vector<std::vector<RunResult>> runs = run_all(claims);
  std::vector<EvaluatedClaim> evaluated;
  for (std::size_t c = 0; c < claims.size(); ++c) {
    EvaluatedClaim& one = evaluated.emplace_back(EvaluatedClaim{std::move(claims[c]), std::move(runs[c]), {}});
    for (const Measure& measure : one.claim.measures) one.rows.push_back(evaluate(one.claim, measure, one.runs));
  }
  if (!folder.empty()) write_scenarios(evaluated, folder);
  fmt::print("{}", json ? table_json(evaluated) : table_text(evaluated, explain));
  return 0;
}

}  // namespace
}  // namespace sluice::bench::claims

int main(int argc, char** argv) {
  CLI::App app("Runs claims of papers and prints published and predicted values.", "claims");
  std::vector<std::string> paths = {SLUICE_SOURCE_DIR "/examples/claims"};
  bool explain = false;
  bool json = false;
  std::string folder;
  app.add_option("claims", paths, "Claim files, or folders of claim files (default: examples/claims)");
  app.add_flag("--explain", explain,
               "Also print the source and the assumptions of each claim, and why the prediction differs");
  app.add_flag("--json", json, "Print one JSON document (sluice.claims/1) with every run");
  app.add_option("--write-scenarios", folder,
                 "Also write each run to this folder as a scenario file for sluice simulate");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return sluice::bench::claims::run(paths, explain, json, folder);
  } catch (const sluice::model::InputError& error) {
    fmt::print(stderr, "claims: {}\n", error.what());
    return 2;
  } catch (const sluice::model::ScheduleError& error) {
    fmt::print(stderr, "claims: {}\n", error.what());
    return 4;
  } catch (const std::exception& error) {
    fmt::print(stderr, "claims: {}\n", error.what());
    return 1;
  }
}
