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

std::string three_digits(double value) { return fmt::format("{:.4g}", value); }

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

// Whether a row is predicted: others have formats or machines that are not modeled, or no published shape.
bool is_bf16_on_h100(const CsvTable& table, int row) {
  return table.text(row, "gpu_type") == "H100" && table.text(row, "precision") == "BF16";
}

// A row of the DGXC benchmarks. Where stages times layers do not divide, embedding and head count as a layer each, as
// in NeMo's recipe of Llama 3.1 405B.
MeasuredIteration dgxc_row(CsvTable table, int row) {
  const Json models = base_of("nemo-models");
  const std::string& name = table.text(row, "model");
  if (!models.contains(name)) table.fail(row, "model", "expected a model of nemo-models.json");
  Json base = base_of("nemo");
  base["model"] = models.at(name);
  base["model"].update({{"position_embedding_type", "rope"},
                        {"untie_embeddings_and_output_weights", true},
                        {"disable_bias_linear", true},
                        {"hidden_dropout", 0},
                        {"attention_dropout", 0}});
  table.drop("schedule");   // "none" without a pipeline; interleaved where there are chunks
  table.drop("recompute");  // not published
  const auto layers = table.integer(row, "layers", 1, 1000);
  const auto stages = table.integer(row, "pp", 1, 1000) * table.integer(row, "vp", 1, 1000);
  if (layers % stages != 0 && (layers + 2) % stages == 0) {
    base["parallelism"]["first_stage_layers"] = base["parallelism"]["last_stage_layers"] = (layers + 2) / stages - 1;
  }
  MeasuredIteration out = read_configuration(table, row, base);
  out.seconds = table.number(row, "iter_s", 1e-6, 1e6);
  out.setting = fmt::format("{} {}, {} GPUs, ", name, table.text(row, "size"), table.text(row, "gpus")) + out.setting;
  return out;
}

sim::PlanSpace space_of_megatron(std::int64_t gpus) {
  sim::PlanSpace space{.gpus = gpus, .slices = {1}};
  for (const Family& family : all_families()) {
    if (family.in_megatron_lm) space.families.emplace_back(family.name);
  }
  return space;
}

// The predicted best of a plan, or -1.
int search(sim::Plan& plan) {
  for (auto work = plan.next(); !work.empty(); work = plan.next()) {
    plan.take(work, plan.work_out(work));
    plan.end_round();
  }
  const std::vector<int> ranking = plan.ranking();
  return ranking.empty() ? -1 : ranking.front();
}

}  // namespace

TableScore score_dgxc(const CsvTable& table) {
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    if (!is_bf16_on_h100(table, row)) {
      score.skipped.push_back({table.place(row), table.place(row) + ": not on H100 in BF16"});
      continue;
    }
    try {
      const MeasuredIteration measured = dgxc_row(table, row);
      const Prediction prediction = predict(Setup(measured.scenario));
      score.verdicts.push_back({measured.place, measured.setting, true, !prediction.fit || prediction.fit->fits});
      score.comparisons.push_back({"iteration time", measured.place, measured.setting, measured.seconds,
                                   to_seconds(prediction.metrics.makespan), "s"});
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

std::string agreement_text(const CsvTable& table) {
  std::string out = "published configurations against the best for Megatron-LM, both predicted:\n";
  std::vector<double> slower;
  for (int row = 0; row < table.num_rows(); ++row) {
    if (!is_bf16_on_h100(table, row)) continue;
    try {
      const MeasuredIteration measured = dgxc_row(table, row);
      const Prediction published = predict(Setup(measured.scenario));
      Scenario base = measured.scenario;
      base.stage_layers.clear();
      const std::int64_t gpus = table.integer(row, "gpus", 1, 1 << 30);
      base.cluster->nodes = static_cast<int>((gpus + base.cluster->gpus_per_node - 1) / base.cluster->gpus_per_node);
      sim::Plan plan(base, space_of_megatron(gpus), 1);
      const int best = search(plan);
      if (best < 0) throw InputError(measured.place + ": no configuration fits");
      const double published_s = to_seconds(published.metrics.makespan);
      const double best_s = to_seconds(plan.results()[best].iteration);
      slower.push_back(published_s / best_s - 1);
      out +=
          fmt::format("{:+6.1f} %  {} s published{}, {} s best  {}\n          best: {}\n", 100 * slower.back(),
                      three_digits(published_s), published.fit && !published.fit->fits ? " (does not fit)" : "",
                      three_digits(best_s), measured.setting, flags_of(plan.base(), plan.space(), plan.points()[best]));
    } catch (const InputError& error) {
      out += fmt::format("skipped: {}\n", error.what());
    }
  }
  if (slower.empty()) return out;
  std::sort(slower.begin(), slower.end());
  return out + fmt::format("{} configurations: slower by {:.1f} % (median), at most {:.1f} %\n", slower.size(),
                           50 * (slower[(slower.size() - 1) / 2] + slower[slower.size() / 2]), 100 * slower.back());
}

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
