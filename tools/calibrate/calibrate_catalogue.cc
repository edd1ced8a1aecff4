#include "tools/calibrate/calibrate_catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/cluster/cluster.h"
#include "model/errors.h"
#include "model/input/csv.h"
#include "model/input/files.h"
#include "model/input/json_reader.h"
#include "sim/calibration/catalogue_files.h"
#include "sim/calibration/constants.h"
#include "sim/calibration/kernel_fit.h"
#include "sim/calibration/link_fit.h"
#include "sim/calibration/measured_table.h"
#include "tools/command/document.h"
#include "tools/command/messages.h"
#include "tools/command/scenario_flags.h"
#include "traces/chrome/trace_events.h"

namespace sluice::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson errors_json(const FitErrors& errors) {
  return {{"rows", errors.rows}, {"mean", errors.mean}, {"median", errors.median}, {"worst", errors.worst}};
}

std::string errors_text(const FitErrors& in_sample, const FitErrors& held_out) {
  return fmt::format("{:>6}  {:>6.2f} %  {:>6.2f} %  {:>6.1f} %  {:>6.2f} %  {:>6.2f} %  {:>6.1f} %", in_sample.rows,
                     100 * in_sample.mean, 100 * in_sample.median, 100 * in_sample.worst, 100 * held_out.mean,
                     100 * held_out.median, 100 * held_out.worst);
}

constexpr const char* kErrorsHeader = "  rows      mean    median     worst  held out    median     worst";

void write_into(const std::string& folder, const std::string& name, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError(fmt::format("{}: cannot create the folder: {}", folder, error.message()));
  write_file_whole(folder + "/" + name + ".json", text);
}

// The table of fitted kernels and collectives.
class FitReport {
 public:
  explicit FitReport(bool json) : json_(json) {}

  void add(const std::string& name, const std::string& what, const LogFit& fit,
           const std::vector<std::string>& constants) {
    if (fit.in_sample.rows == 0) return;
    OrderedJson values = OrderedJson::object();
    std::string shown;
    for (std::size_t i = 0; i < std::min(constants.size(), fit.constants.size()); ++i) {
      values[constants[i]] = fit.constants[i];
      fmt::format_to(std::back_inserter(shown), "{}{} {:.3g}", i == 0 ? "" : ", ", constants[i], fit.constants[i]);
    }
    rows_.push_back({{"name", name},
                     {"of", what},
                     {"constants", values},
                     {"in_sample", errors_json(fit.in_sample)},
                     {"held_out", errors_json(fit.held_out)}});
    const bool known = fit.known.rows > 0;
    if (known) rows_.back()["catalogue"] = errors_json(fit.known);
    fmt::format_to(std::back_inserter(text_), "{:<16} {:<26} {:>9}  {}  {}\n", name, what,
                   known ? fmt::format("{:.2f} %", 100 * fit.known.mean) : "-",
                   errors_text(fit.in_sample, fit.held_out), shown);
  }

  bool empty() const { return rows_.empty(); }

  std::string text() const {
    if (json_) {
      return json_text({{"schema", "sluice.calibrated/1"}, {"fits", rows_}});
    } else {
      return fmt::format("{:<16} {:<26} {:>9}  {}\n{}", "", "", "catalogue", kErrorsHeader, text_);
    }
  }

 private:
  bool json_;
  OrderedJson rows_ = OrderedJson::array();
  std::string text_;
};

// "name", "name@2", "name=0.9" or "name@2=0.9".
Constant constant_of(const std::string& text, std::int64_t num_tables) {
  const std::size_t equals = text.find('=');
  const std::string place = text.substr(0, equals);
  const std::size_t at = place.find('@');
  Constant constant;
  try {
    constant = find_constant(place.substr(0, at));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--constants: {}", error.what()));
  }
  if (at != std::string::npos) {
    const char* end = place.data() + place.size();
    int table = 0;
    const auto [rest, error] = std::from_chars(place.data() + at + 1, end, table);
    if (error != std::errc() || rest != end || table < 1 || table > num_tables) {
      throw InputError(fmt::format("--constants: '{}': expected a table number from 1 to {}", text, num_tables));
    }
    constant.table = table - 1;
  }
  if (equals != std::string::npos) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + equals + 1, end, constant.belief.guess);
    const FitConstant& belief = constant.belief;
    if (error != std::errc() || rest != end || !(belief.guess >= belief.low && belief.guess <= belief.high)) {
      throw InputError(
          fmt::format("--constants: '{}': expected a prior value from {} to {}", text, belief.low, belief.high));
    }
    constant.guessed = true;
  }
  return constant;
}

// Measured iterations with the scenario of the first table, which the written files extend.
struct MeasuredTables {
  std::vector<MeasuredTable> tables;
  nlohmann::json scenario;
  std::string folder;
};

MeasuredTables read_tables(const CatalogueRequest& request, const nlohmann::json& base, const std::string& folder) {
  MeasuredTables out{.tables = {}, .scenario = base, .folder = folder};
  for (const std::string& text : request.tables) {
    const MeasuredFile named = measured_file(text);
    nlohmann::json scenario = base;
    std::string scenario_folder = folder;
    if (!named.scenario.empty()) {
      scenario = parse_json(read_file(named.scenario), named.scenario);
      scenario_folder = ScenarioFlags::folder_of(named.scenario);
    }
    if (out.tables.empty()) {
      out.scenario = scenario;
      out.folder = scenario_folder;
    }
    MeasuredTable table{.name = std::filesystem::path(named.path).stem().string()};
    const CsvTable read = read_iteration_table(named.path, request.ignored);
    for (MeasuredIteration& row : read_measured_iterations(read, scenario, scenario_folder)) {
      if (!row.out_of_memory) table.rows.push_back(std::move(row));
    }
    out.tables.push_back(std::move(table));
  }
  return out;
}

std::string constants_json(const CatalogueRequest& request, const std::vector<MeasuredTable>& tables,
                           const ConstantsFit& found) {
  OrderedJson out = {{"schema", "sluice.calibrated/1"}};
  for (std::size_t i = 0; i < request.constants.size(); ++i) {
    out["constants"].push_back({{"name", request.constants[i]},
                                {"value", found.fit.constants[i]},
                                {"deviation_of_logarithm", found.fit.deviations[i]}});
  }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    out["tables"].push_back({{"table", tables[t].name},
                             {"in_sample", errors_json(found.in_sample[t])},
                             {"held_out", errors_json(found.held_out[t])}});
  }
  return json_text(out);
}

std::string constants_text(const CatalogueRequest& request, const std::vector<MeasuredTable>& tables,
                           const ConstantsFit& found) {
  std::string out = fmt::format("{:<46} {:>10}  {} folds\n", "constant", "value", request.folds);
  for (std::size_t i = 0; i < request.constants.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{:<46} {:>10.4g}  ±{:.1f} %\n", request.constants[i],
                   found.fit.constants[i], 100 * std::expm1(found.fit.deviations[i]));
  }
  fmt::format_to(std::back_inserter(out), "\n{:<34} {}\n", "table", kErrorsHeader);
  for (std::size_t t = 0; t < tables.size(); ++t) {
    fmt::format_to(std::back_inserter(out), "{:<34} {}\n", tables[t].name,
                   errors_text(found.in_sample[t], found.held_out[t]));
  }
  return out;
}

}  // namespace

MeasuredFile measured_file(const std::string& text) {
  const std::size_t cut = text.rfind('=');
  if (cut == std::string::npos || !text.ends_with(".json")) return {text, ""};
  return {text.substr(0, cut), text.substr(cut + 1)};
}

void check_any_measured(const std::vector<std::string>& files, std::size_t rows) {
  if (rows > 0) return;
  throw InputError(
      fmt::format("{}: expected at least one measured iteration (rows with OOM have no time)", fmt::join(files, ", ")));
}

CsvTable read_iteration_table(const std::string& path, const std::vector<std::string>& ignored) {
  CsvTable table = read_csv(path);
  for (const std::string& column : ignored) table.drop(column);
  if (has_measured_times(table)) check_columns(table);
  return table;
}

// Reads a table of kernels or collectives, which may be gzipped.
CsvTable read_kernel_table(const std::string& path) {
  return path.ends_with(".gz") ? CsvTable(traces::TraceSource(path).text(), path) : read_csv(path);
}

bool measures_kernels_or_links(const std::string& table) {
  const MeasuredFile file = measured_file(table);
  if (!file.path.ends_with(".csv") && !file.path.ends_with(".csv.gz")) return false;  // a log
  const CsvTable read = read_kernel_table(file.path);
  return has_measured_kernels(read) || has_measured_links(read);
}

bool is_kernel_times(const std::string& table) {
  return table.ends_with(".json") && measured_file(table).scenario.empty();
}

std::string calibrate_kernels_and_links(const CatalogueRequest& request) {
  constexpr const char* kCommand = "sluice calibrate";
  if (!request.constants.empty()) {
    throw InputError(
        "calibrate: --constants needs measured iterations: the columns of kernels and collectives determine "
        "what is fitted");
  }
  if (!request.ignored.empty()) throw InputError("calibrate: --ignore-columns needs measured iterations");
  FitReport report(request.json);
  std::map<std::string, MeasuredLink> links;
  std::vector<std::string> unknown;
  std::vector<CsvTable> tables;
  for (const std::string& path : request.tables) tables.push_back(read_kernel_table(path));  // before one is written
  std::map<std::string, MeasuredKernels> gpus;
  for (const CsvTable& table : tables) {
    if (has_measured_kernels(table)) {
      for (const auto& [name, measured] : read_measured_kernels(table)) add(gpus[name], measured);
    } else if (has_measured_links(table)) {
      for (auto& [name, measured] : read_measured_links(table)) {
        MeasuredLink& all = links[name];
        if (all.origin.empty()) all.origin = measured.origin;
        all.all_reduces.insert(all.all_reduces.end(), measured.all_reduces.begin(), measured.all_reduces.end());
        all.all_to_alls.insert(all.all_to_alls.end(), measured.all_to_alls.begin(), measured.all_to_alls.end());
        if (measured.message_bytes_per_s > 0) {
          all.message_latency_s = measured.message_latency_s;
          all.message_bytes_per_s = measured.message_bytes_per_s;
        }
      }
    } else {
      throw InputError(table.source() + ": header: expected a table of kernels or collectives, like the first table");
    }
  }
  for (const auto& [name, measured] : gpus) {
    const std::vector<std::string> known = catalogue_gpus();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      unknown.push_back(name);
      continue;
    }
    const GpuFit fit = fit_gpu(catalogue_gpu(name), measured);
    report.add(name, "GEMMs", fit.gemm,
               {"peak_fraction", "operand_edge", "exposed_write", "memory_efficiency", "launch_s"});
    const std::vector<std::string> narrow = {"peak_fraction", "operand_edge",    "exposed_write", "memory_efficiency",
                                             "launch_s",      "cast by tensors", "cast by blocks"};
    report.add(name, "GEMMs, 8 bits", fit.narrow[0], narrow);
    report.add(name, "GEMMs, 4 bits", fit.narrow[1], narrow);
    for (std::size_t i = 0; i < fit.experts.size(); ++i) {
      report.add(name, fmt::format("experts, {}", kExpertsFormats[i]), fit.experts[i],
                 {"time of GEMMs", "memory_efficiency", "fixed_s"});
    }
    const std::vector<std::string> constants = {"peak_fraction", "tail_rows", "overhead_keys"};
    report.add(name, "attention forward", fit.attention[0][0], constants);
    report.add(name, "attention backward", fit.attention[0][1], constants);
    report.add(name, "attention forward, 8 bits", fit.attention[1][0], constants);
    report.add(name, "attention backward, 8 bits", fit.attention[1][1], constants);
    for (const std::size_t bits : {0, 1}) {
      for (const std::size_t pass : {0, 1}) {
        for (const auto& [size, found] : fit.heads[bits][pass]) {
          report.add(
              name,
              fmt::format("{}, heads of {}{}", pass == 0 ? "forward" : "backward", size, bits == 0 ? "" : ", 8 bits"),
              found, {"peak_fraction", "tail_rows", "overhead_keys", "launch", "window_keys"});
        }
      }
    }
    if (!request.output.empty()) write_into(request.output, name, gpu_file_with(name, fit, kCommand));
  }
  for (const auto& [name, measured] : links) {
    const LinkFit fit = fit_link(catalogue_link(name), measured);
    report.add(name, "all-reduces", fit.all_reduce, {"collective_latency_s", "collective_step_s"});
    report.add(name, "all-to-alls", fit.all_to_all, {"exchange_efficiency", "exchange_copy_rate"});
    if (!request.output.empty()) write_into(request.output, name, link_file_with(name, fit, kCommand));
  }
  for (const std::string& name : unknown) print_message(name + ": not in the catalogue, skipped");
  if (report.empty()) {
    throw InputError(fmt::format("{}: nothing to fit: expected at least {} rows of a GPU or link of the catalogue",
                                 fmt::join(request.tables, ", "), kFewestRows));
  }
  return report.text();
}

std::vector<std::string> constant_names() {
  std::vector<std::string> names;
  for (const Constant& constant : fittable_constants()) names.push_back(constant.name);
  return names;
}

std::string calibrate_constants(const CatalogueRequest& request, const nlohmann::json& base,
                                const std::string& folder) {
  std::vector<Constant> constants;
  for (const std::string& text : request.constants) constants.push_back(constant_of(text, std::ssize(request.tables)));
  const MeasuredTables measured = read_tables(request, base, folder);
  const std::vector<MeasuredTable>& tables = measured.tables;
  std::size_t rows = 0;
  for (const MeasuredTable& table : tables) rows += table.rows.size();
  check_any_measured(request.tables, rows);
  const ConstantsFit found = fit_constants(tables, constants, request.folds);

  std::string source = "sluice calibrate,";
  for (std::size_t t = 0; t < tables.size(); ++t) {
    fmt::format_to(std::back_inserter(source), "{} {} rows of {} (mean error {:.1f} %, held out {:.1f} %)",
                   t == 0 ? "" : ",", found.in_sample[t].rows, tables[t].name, 100 * found.in_sample[t].mean,
                   100 * found.held_out[t].mean);
  }
  if (!request.output.empty()) {
    const ConstantsFiles files =
        files_with_constants(measured.scenario, measured.folder, constants, found.fit.constants, source);
    if (!files.node.empty()) write_file_whole(request.output + ".node.json", files.node);
    if (!files.software.empty()) write_file_whole(request.output + ".software.json", files.software);
  }
  return (request.json ? constants_json : constants_text)(request, tables, found);
}

}  // namespace sluice::tools
