#include "benchmarks/accuracy/framework_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "model/schedule/family.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"
#include "sim/planner/plan.h"

namespace sluice::bench::accuracy {
namespace {

// Runs slower than this many times the best of their set were slowed by the cluster: their times are not compared.
constexpr double kSlowestClean = 2;

// nanotron's layers keep more than Megatron-LM's: with sequence parallelism also the gathered inputs of its GEMMs.
constexpr double kMemoryMargin = 0.2;

// nanotron's layers per stage (PipelineEngine and get_block_compute_costs): blocks go to a rank until their weights
// exceed its part of all weights of layers and head.
std::vector<int> nanotron_layers(const Transformer& model, int stages) {
  const double hidden = static_cast<double>(model.hidden);
  const double layer = hidden * (4.0 * model.heads * model.head_dim + 3.0 * model.ffn_hidden);
  const double all = model.layers * layer + static_cast<double>(model.vocab) * hidden;
  std::vector<int> out(stages);
  int stage = 0;
  for (int done = 1; done <= model.layers; ++done) {
    ++out[stage];
    if (done * layer > all * (stage + 1) / stages) ++stage;
  }
  return out;
}

}  // namespace

TableScore score_ultrascale(const CsvTable& table) {
  TableScore score;
  std::map<std::string, double> best;  // measured seconds by set
  for (int row = 0; row < table.num_rows(); ++row) {
    Json base = base_of("nanotron");
    base["parallelism"]["distributed_optimizer"] = table.integer(row, "zero", 0, 1) == 1;
    try {
      MeasuredIteration measured = read_configuration(table, row, base);
      Scenario& scenario = measured.scenario;
      scenario.cluster->gpu.memory_margin = kMemoryMargin;
      if (scenario.training.pp > 1) scenario.stage_layers = nanotron_layers(*scenario.model, scenario.training.pp);
      const Prediction prediction = predict(Setup(measured.scenario));
      MeasuredRun run{.place = measured.place, .setting = measured.setting};
      run.set = fmt::format("{}, {} GPUs, batch {}, sequence {}", table.text(row, "model"), table.text(row, "gpus"),
                            table.text(row, "gbs"), table.text(row, "seq"));
      run.predicted_s = to_seconds(prediction.metrics.makespan);
      run.predicted_fits = !prediction.fit || prediction.fit->fits;
      run.predicted_tight = prediction.fit && scenario.cluster->gpu.within_margin(prediction.fit->needed_bytes);
      run.alike = fmt::format("tp {}, mbs {}", table.text(row, "tp"), table.text(row, "mbs"));
      if (table.text(row, "status") == "ok") run.measured_s = table.number(row, "iter_s", 1e-6, 1e6);
      if (run.measured_s > 0 && (!best.contains(run.set) || run.measured_s < best[run.set]))
        best[run.set] = run.measured_s;
      if (run.measured_s > 0 && prediction.fit) {
        const double measured_gb = table.number(row, "peak_mem_GB", 1e-3, 1e6);
        const double predicted_gb =
            static_cast<double>(prediction.fit->needed_bytes - scenario.cluster->gpu.reserved_bytes) / 1e9;
        score.comparisons.push_back({"peak memory", run.place, run.setting, measured_gb, predicted_gb, "GB"});
      }
      score.runs.push_back(run);
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  for (const MeasuredRun& run : score.runs) {
    if (run.measured_s == 0) continue;
    score.verdicts.push_back({run.place, run.setting, true, run.predicted_fits});
    if (run.measured_s > kSlowestClean * best[run.set]) continue;
    score.comparisons.push_back(
        {"time of runs within twice the best", run.place, run.setting, run.measured_s, run.predicted_s, "s"});
  }
  return score;
}

}  // namespace sluice::bench::accuracy
