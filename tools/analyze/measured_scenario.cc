#include "tools/analyze/measured_scenario.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "model/median.h"
#include "model/schedule/family.h"
#include "model/to_size.h"

namespace sluice::tools {
namespace {

// Seconds, to the nanosecond.
double rounded(double nanoseconds) { return std::round(nanoseconds) / 1e9; }

struct MeanTime {
  double sum = 0;
  std::int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

double nanoseconds(Duration time) { return static_cast<double>(time.count()); }

// The median transfer without waiting.
double median_transfer(const std::vector<StepGraph>& graphs) {
  std::vector<double> times;
  for (const StepGraph& graph : graphs) {
    for (std::size_t p = 0; p < graph.size(); ++p) {
      if (is_pipeline_transfer(graph.ops[p]->kind)) times.push_back(graph.transfer[p]);
    }
  }
  return upper_median(std::move(times));
}

}  // namespace

nlohmann::ordered_json measured_scenario(const Analysis& analysis) {
  const MeasuredRun& run = analysis.run;
  std::vector<std::array<MeanTime, 4>> passes(to_size(run.stages()));
  std::vector<Duration> last_pass(run.steps.size(), Duration::zero());
  std::vector<Duration> last(run.steps.size(), Duration::zero());
  for (const MeasuredOp& op : run.ops) {
    const std::size_t step = to_size(op.step);
    last[step] = std::max(last[step], op.end);
    if (!is_pass(op.kind)) continue;
    last_pass[step] = std::max(last_pass[step], op.end);
    passes[to_size(run.stage(run.rank_of(op.worker), op.chunk))][to_size(static_cast<int>(op.kind))].add(
        nanoseconds(op.end - op.start));
  }
  MeanTime tail;
  for (std::size_t step = 0; step < last.size(); ++step) tail.add(nanoseconds(last[step] - last_pass[step]));

  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const std::array<MeanTime, 4>& stage : passes) {
    const auto of = [&](MeasuredKind kind) { return stage[to_size(static_cast<int>(kind))].value(); };
    const double whole = of(MeasuredKind::backward);
    stages.push_back({{"f", rounded(of(MeasuredKind::forward))},
                      {"b", rounded(of(MeasuredKind::input_gradient) + whole / 2)},
                      {"w", rounded(of(MeasuredKind::weight_gradient) + whole / 2)}});
  }
  nlohmann::ordered_json out;
  out["schema"] = "sluice.scenario/1";
  out["parallelism"] = {{"pp", run.ranks}};
  if (run.chunks > 1 ||
      (!analysis.schedule.family.empty() && find_family(analysis.schedule.family).fixed_chunks == 0)) {
    out["parallelism"]["vpp"] = run.chunks;
  }
  out["batch"] = {{"microbatches", run.microbatches}};
  out["schedule"] = {{"name", analysis.schedule.family.empty() ? "1f1b" : analysis.schedule.family}};
  out["cost"] = {{"kind", "uniform"},
                 {"stages", std::move(stages)},
                 {"comm", rounded(median_transfer(analysis.graphs))},
                 {"optimizer", rounded(tail.value())}};
  return out;
}

}  // namespace sluice::tools
