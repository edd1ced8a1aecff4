#include "tools/compare/compared_run.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "model/errors.h"
#include "model/input/json_reader.h"
#include "sim/engine/predict.h"
#include "tools/command/automatic.h"
#include "tools/command/calibration_warning.h"
#include "tools/command/scenario_flags.h"
#include "traces/measured/measured_rows.h"
#include "traces/measured/primus.h"
#include "traces/measured/read_measured.h"

namespace sluice::tools {
namespace {

ComparedRun simulated_run(const std::string& path, const std::string& text) {
  const Scenario scenario = scenario_from_json(parse_json(text, path), path, ScenarioFlags::folder_of(path));
  const PlannedSetup planned = planned_with_progress(scenario);
  const Prediction prediction = predict(*planned.setup, {.keep_memory = true});
  ComparedRun side{.what = "simulated"};
  const OpGraph& graph = planned.setup->graph();
  side.read.run =
      rows_of(graph, prediction.timeline, graph.has_bytes() ? prediction.memory : std::vector<RankMemory>{});
  side.read.run.parts = part_rows(graph, planned.setup->cost(), prediction.timeline);
  side.read.notes.push_back(fmt::format("{} ranks", side.read.run.num_ranks));
  if (std::string warning = calibration_warning(scenario); !warning.empty()) {
    side.read.notes.push_back(std::move(warning));
  }
  return side;
}

}  // namespace

ComparedRun compared_run(const std::string& word, std::optional<std::int64_t> step) {
  const std::vector<std::string> files = trace_files(word);
  if (is_primus_log(files)) return {.what = "read", .read = rows_of_step(read_primus_log(files), step, word)};
  if (files.size() > 1) return {.what = "read", .read = read_trace_run(files, {.step = step})};
  std::vector<std::unique_ptr<TraceSource>> sources;
  sources.push_back(std::make_unique<TraceSource>(files[0]));
  if (!sources[0]->is_trace()) return simulated_run(files[0], sources[0]->text());
  if (measured_kind(sources[0]->first_name())) {
    return {.what = "read", .read = rows_of_step(read_bytedance_timeline(*sources[0]), step, word)};
  }
  return {.what = "read", .read = read_trace_run(std::move(sources), {.step = step})};
}

Comparison compared(const RunRows& a, const RunRows& b, const ComparisonOptions& how, const std::string& first,
                    const std::string& second) {
  if (!how.by_kind) {
    const std::string difference = first_difference(a, b, {.first = first, .second = second});
    if (!difference.empty()) {
      throw InputError(fmt::format(
          "compare: expected two runs with the same stages, microbatches and slices: {}; --by-kind compares only kinds "
          "of ops",
          difference));
    }
  }
  return compare(a, b, how);
}

}  // namespace sluice::tools
