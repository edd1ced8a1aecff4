// Runs the claims of the papers: `claims [FILES OR FOLDERS] [--explain] [--json] [--write-scenarios DIR]`, and prints
// the published figures beside ours. A claim is a file of sluice.claim/1 (docs/formats.md). It tells differences, not
// verdicts: the exit code is 0 whatever they are.

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
  std::vector<std::vector<Ran>> runs = run_all(claims);
  std::vector<Answered> answered;
  for (std::size_t c = 0; c < claims.size(); ++c) {
    Answered& one = answered.emplace_back(Answered{std::move(claims[c]), std::move(runs[c]), {}});
    for (const Measure& measure : one.claim.measures) one.answers.push_back(answer(one.claim, measure, one.runs));
  }
  if (!folder.empty()) write_scenarios(answered, folder);
  fmt::print("{}", json ? table_json(answered) : table_text(answered, explain));
  return 0;
}

}  // namespace
}  // namespace sluice::bench::claims

int main(int argc, char** argv) {
  CLI::App app("Runs claims of papers and prints the published figures beside ours.", "claims");
  std::vector<std::string> paths = {SLUICE_SOURCE_DIR "/examples/claims"};
  bool explain = false;
  bool json = false;
  std::string folder;
  app.add_option("claims", paths, "files of claims, or folders of them (examples/claims)");
  app.add_flag("--explain", explain, "where each claim is from, what is assumed, and why ours differs");
  app.add_flag("--json", json, "one JSON document (sluice.claims/1), with every run");
  app.add_option("--write-scenarios", folder, "also write each run as a scenario file, for sluice simulate");
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
