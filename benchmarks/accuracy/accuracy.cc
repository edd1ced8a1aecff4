// Scores predictions on published measurements: `accuracy DATA... [--rows] [--json]`, where DATA is a CSV table or a
// folder of tables. The kind of a table follows from its columns (tables.cc).

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "benchmarks/accuracy/choices.h"
#include "benchmarks/accuracy/framework_tables.h"
#include "benchmarks/accuracy/score.h"
#include "benchmarks/files_in.h"
#include "model/errors.h"

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

int run(const std::vector<std::string>& paths, bool rows, bool json, bool plans) {
  std::vector<std::pair<std::string, TableScore>> scores;
  std::vector<std::string> unknown;
  std::string agreements;
  for (const std::string& file : files_in(paths, ".csv")) {
    const CsvTable table = read_csv(file);
    const TableKind* kind = kind_of(table);
    if (kind == nullptr) {
      unknown.push_back(std::filesystem::path(file).filename().string());
      continue;
    }
    scores.emplace_back(kind->name, kind->score(table));
    if (plans && kind->name == "dgxc") agreements += agreement_text(table);
  }
  if (scores.empty())
    throw InputError("expected at least one table with the columns of a known kind (benchmarks/accuracy/tables.cc)");
  if (json) {
    fmt::print("{}", score_json(scores));
    return 0;
  }
  fmt::print("{:<22} {:<34} {:>5}  {:>8}  {:>8}  {:>8}  {:>10}\n", "table", "absolute error of", "rows", "mean",
             "median", "worst", "signed");
  for (const auto& [name, score] : scores) {
    fmt::print("{}", score_text(name, score, rows));
    const std::vector<MeasuredRun> runs = runs_of(score);
    fmt::print("{}{}", difference_text(runs), regret_text(regret_of(runs)));
  }
  fmt::print("{}", agreements);
  if (!unknown.empty()) fmt::print("not scored: {}\n", fmt::join(unknown, ", "));
  return 0;
}

}  // namespace
}  // namespace sluice::bench::accuracy

int main(int argc, char** argv) {
  CLI::App app("Predicts every row of published tables and prints the errors of the predictions.", "accuracy");
  std::vector<std::string> paths;
  bool rows = false;
  bool json = false;
  bool plans = false;
  app.add_option("data", paths, "CSV tables, or folders of CSV tables")->required();
  app.add_flag("--rows", rows, "Also print every row");
  app.add_flag("--json", json, "Print one JSON document (sluice.accuracy/1) with every row");
  app.add_flag("--plans", plans, "Also compare the configurations of a dgxc table with the plans of their GPUs");
  CLI11_PARSE(app, argc, argv);
  try {
    return sluice::bench::accuracy::run(paths, rows, json, plans);
  } catch (const sluice::model::InputError& error) {
    fmt::print(stderr, "accuracy: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "accuracy: {}\n", error.what());
    return 1;
  }
}
