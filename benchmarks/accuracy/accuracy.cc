// Scores predictions on published measurements: `accuracy DATA... [--rows] [--json]`, where DATA is a CSV table or a
// folder of tables. The kind of a table follows from its columns (tables.cc).

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>

#include "benchmarks/accuracy/calibrated.h"
#include "benchmarks/accuracy/choices.h"
#include "benchmarks/accuracy/iteration_tables.h"
#include "benchmarks/accuracy/nvidia_tables.h"
#include "benchmarks/accuracy/score.h"
#include "benchmarks/accuracy/torchtitan_table.h"
#include "benchmarks/files_in.h"
#include "model/errors.h"
#include "model/input/files.h"

namespace sluice::bench::accuracy {
namespace {

const TableKind* kind_of(const CsvTable& table) {
  for (const TableKind& kind : table_kinds()) {
    if (std::all_of(kind.columns.begin(), kind.columns.end(), [&](const auto& name) { return table.has(name); })) {
      return &kind;
    }
  }
  return nullptr;
}

// Writes the tables of add_rows into a folder.
void write_rows(const std::map<std::string, std::string>& rows, const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& [group, text] : rows) {
    std::string name = group;
    std::replace(name.begin(), name.end(), ' ', '-');
    name.erase(std::remove(name.begin(), name.end(), ','), name.end());
    write_file_whole(folder + "/" + name + ".csv", text);
  }
}

struct Options {
  std::vector<std::string> paths;
  std::vector<std::string> ignored;  // columns of tables of one's own
  bool rows = false;
  bool json = false;
  bool plans = false;
  bool calibrated = false;
  std::string folder;  // of --write-rows
  std::string page;    // of --html
};

// A user's table, "runs.csv=scenario.json".
std::pair<std::string, TableScore> users_score(const std::string& path, const std::vector<std::string>& ignored) {
  const std::size_t cut = path.rfind('=');
  const std::string scenario = path.substr(cut + 1);
  CsvTable table = read_csv(path.substr(0, cut));
  for (const std::string& column : ignored) table.drop(column);
  const std::string folder = std::filesystem::path(scenario).parent_path().string();
  return {std::filesystem::path(path.substr(0, cut)).stem().string(),
          score_users_table(table, parse_json(read_file(scenario), scenario), folder)};
}

int run(const Options& options) {
  std::vector<std::pair<std::string, TableScore>> scores;
  std::vector<std::string> unknown;
  std::string agreements;
  std::map<std::string, std::string> written;
  std::vector<std::string> published;
  for (const std::string& path : options.paths) {
    const bool own = path.ends_with(".json") && path.find('=') != std::string::npos;
    if (own) {
      scores.push_back(users_score(path, options.ignored));
      const TableScore& score = scores.back().second;
      if (score.comparisons.empty() && score.verdicts.empty() && !score.skipped.empty()) {
        throw InputError(fmt::format("no row can be predicted; the first: {}", score.skipped.front().reason));
      }
    } else {
      published.push_back(path);
    }
  }
  for (const std::string& file : files_in(published, ".csv")) {
    const CsvTable table = read_csv(file);
    const TableKind* kind = kind_of(table);
    if (kind == nullptr) {
      unknown.push_back(std::filesystem::path(file).filename().string());
      continue;
    }
    scores.emplace_back(kind->name, kind->score(table));
    if (!options.folder.empty() && kind->name == "torchtitan") {
      add_torchtitan_rows(table, written);
    } else if (!options.folder.empty() && table.has("gpu_type") && !table.has("all_args")) {
      add_rows(table, written);
    }
    if (options.plans && (kind->name == "dgxc" || kind->name == "megatron-bridge" || kind->name == "nemo-2024"))
      agreements += agreement_text(table);
  }
  if (scores.empty())
    throw InputError(
        "expected at least one table with the columns of a known kind (benchmarks/accuracy/tables.cc), or a table of "
        "your own with its scenario, TABLE.csv=SCENARIO.json");
  if (!options.folder.empty()) write_rows(written, options.folder);
  if (!options.page.empty()) write_file_whole(options.page, score_page(scores));
  if (options.json) {
    fmt::print("{}", score_json(scores));
    return 0;
  }
  fmt::print("{:<22} {:<34} {:>5}  {:>8}  {:>8}  {:>8}  {:>10}  {:<14} {:<11} {}\n", "table", "absolute error of",
             "rows", "mean", "median", "worst", "bias", "GPU", "precision", "worst row");
  for (const auto& [name, score] : scores) {
    fmt::print("{}", score_text(name, score, options.rows));
    const std::vector<MeasuredRun> runs = runs_of(score);
    fmt::print("{}{}", difference_text(runs), regret_text(regret_of(runs)));
    if (options.calibrated) fmt::print("{}", calibrated_text(calibrated_on_two(score)));
  }
  fmt::print("{}", agreements);
  if (!unknown.empty()) fmt::print("not scored: {}\n", fmt::join(unknown, ", "));
  return 0;
}

}  // namespace
}  // namespace sluice::bench::accuracy

int main(int argc, char** argv) {
  CLI::App app("Predicts every row of published tables and prints the errors of the predictions.", "accuracy");
  sluice::bench::accuracy::Options options;
  app.add_option("data", options.paths,
                 "Published CSV tables, or folders of them; TABLE.csv=SCENARIO.json: a table of your own iterations "
                 "(docs/formats.md), with the scenario of what its rows do not contain")
      ->required();
  app.add_flag("--rows", options.rows, "Also print every row");
  app.add_flag("--json", options.json, "Print one JSON document (sluice.accuracy/1) with every row");
  app.add_flag("--plans", options.plans,
               "Also compare the configurations of NVIDIA's tables with the plans of their GPUs");
  app.add_flag("--calibrated", options.calibrated,
               "Also calibrate on every pair of rows of each model, GPU and precision with at least three rows, and "
               "print the mean error of its other rows");
  app.add_option("--ignore-columns", options.ignored, "Columns of tables of your own to ignore, as a,b,c")
      ->delimiter(',');
  app.add_option("--html", options.page, "Write predicted against measured values to this HTML page");
  app.add_option(
      "--write-rows", options.folder,
      "Write the runs of NVIDIA's and torchtitan's tables into this folder, by GPU and precision, for 'sluice "
      "calibrate'");
  CLI11_PARSE(app, argc, argv);
  try {
    return sluice::bench::accuracy::run(options);
  } catch (const sluice::model::InputError& error) {
    fmt::print(stderr, "accuracy: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "accuracy: {}\n", error.what());
    return 1;
  }
}
