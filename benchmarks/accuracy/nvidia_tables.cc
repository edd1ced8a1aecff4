#include "benchmarks/accuracy/nvidia_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "model/median.h"
#include "model/schedule/family.h"
#include "model/to_size.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"
#include "sim/planner/plan.h"

namespace sluice::bench::accuracy {
namespace {

std::string four_digits(double value) { return fmt::format("{:.4g}", value); }

// The node of a GPU type. Of an NVL72 domain 64 GPUs are used, so that groups of ranks lie within it.
Json cluster_of(const CsvTable& table, int row) {
  static const std::map<std::string, Json, std::less<>> kNodes = {
      {"H100", "dgx-h100"},
      {"B200", "dgx-b200"},
      {"B300", "dgx-b300"},
      {"GB200", {{"name", "gb200-nvl72"}, {"gpus_per_node", 64}}},
      {"GB300", {{"name", "gb300-nvl72"}, {"gpus_per_node", 64}}},
  };
  std::string_view type = table.text(row, "gpu_type");
  if (type.starts_with("DGX-")) type.remove_prefix(4);
  const auto found = kNodes.find(type);
  if (found == kNodes.end()) throw InputError(fmt::format("{}: no known GPU type", table.place(row)));
  return found->second;
}

// Delayed scaling was NeMo's until 2024; Megatron-Bridge's recipes have current scaling, and block scaling for experts
// on Blackwell.
std::string precision_of(const CsvTable& table, int row) {
  const std::string& word = table.text(row, "precision");
  if (word == "BF16") return "bf16";
  if (word == "NVFP4") return "nvfp4";
  if (word == "MXFP8" || word == "FP8-MX") return "mxfp8";
  if (word == "FP8-CS") return "fp8-current";
  if (word == "FP8" && !table.has("task")) return "fp8";
  if (word == "FP8") return "fp8-current";
  const bool experts = table.has("experts") && !table.text(row, "experts").empty();
  const bool blackwell = table.text(row, "gpu_type").find("B200") != std::string::npos;
  if (word.starts_with("FP8 ")) return experts && blackwell ? "mxfp8" : "fp8-current";
  table.fail(row, "precision", "expected a known precision");
}

// Throws InputError for runs that are not modeled.
void check_modeled(const CsvTable& table, int row) {
  const auto cell = [&](const char* name) { return table.has(name) ? table.text(row, name) : std::string(); };
  const auto skip = [&](const char* why) { throw InputError(fmt::format("{}: {}", table.place(row), why)); };
  if (cell("scaling") == "example log") skip("no GPU type");
  if (!cell("task").empty() && cell("task") != "Pre-Training Performance") skip("not pre-training");
  if (!cell("fsdp").empty() && cell("fsdp") != "0") skip("fully sharded");
  if (cell("layers").empty()) skip("no published shape");
}

// What Megatron-Bridge's recipes set for experts (scripts/performance/configs, *_workload_base_configs.py; their
// versions of autumn 2025, spring and summer 2026), by release. In 25.09 DeepEP on H100 alone, with combined 1F1B and
// without overlapping the reduction of gradients; Bridge's validate_deepep refuses it on Blackwell GPUs, which have
// NCCL's all-to-all. In 25.11 DeepEP on B200 too, and HybridEP on NVL72 domains. There, from 26.02 on, graphs of
// attention and router, without recomputation inside them; from 26.06 on with MXFP8 fused grouped MLPs, attention in 8
// bits, a graph of the whole iteration and combined 1F1B, but Kimi-K2 has none of them. On other nodes no graphs; Qwen3
// 235B has NCCL's all-to-all, on H100 with combined 1F1B.
void set_experts(const CsvTable& table, int row, Json& base) {
  const std::string& release = table.text(row, "release");
  const std::string& type = table.text(row, "gpu_type");
  const std::string& model = table.text(row, "model");
  const bool domain = type.find("GB") != std::string::npos;
  const bool kimi = model.starts_with("Kimi");
  Json& parallelism = base["parallelism"];
  const bool hopper = type.find("H100") != std::string::npos;
  if (release < "26.") {
    if (domain && release > "25.11") {
      parallelism["moe_token_dispatcher"] = "hybridep";
    } else if (hopper || release > "25.11") {
      parallelism["moe_token_dispatcher"] = "deepep";
    }
    if (hopper) {
      base["schedule"] = {{"name", "combined-1f1b"}};
      parallelism["overlap_grad_reduce"] = false;
    }
    return;
  }
  if (!domain && model.starts_with("Qwen3_235B")) {
    if (hopper) base["schedule"] = {{"name", "combined-1f1b"}};
    return;
  }
  if (!model.starts_with("GPT OSS") || release > "26.06") {
    parallelism["moe_token_dispatcher"] = "hybridep";
    parallelism["moe_communication_sms"] = 32;
  }
  if (!domain || kimi) return;
  if (release > "26.06" && precision_of(table, row) == "mxfp8") {
    parallelism["fused_grouped_mlp"] = true;
    parallelism["fp8_dot_product_attention"] = true;
    parallelism["cuda_graph_impl"] = "full_iteration";
    base["schedule"] = {{"name", "combined-1f1b"}};
  } else if (!model.starts_with("GPT OSS")) {
    parallelism["cuda_graph_impl"] = "transformer_engine";
    parallelism["cuda_graph_modules"] = {"moe_router", "moe_preprocess"};
    if (!model.starts_with("Qwen3_30B")) parallelism["cuda_graph_modules"].emplace_back("attn");
  }
}

// DeepSeek-V3 and Kimi-K2 have the embedding in a stage with as many layers as others, and the head beside a smaller
// number; DeepSeek-V3 has a layer of multi-token prediction (megatron/bridge/recipes/deepseek: mtp_num_layers,
// set_deepseek_v3_pipeline_model_parallel_layout; Et|(tt|)*30mL on H100).
void set_layers_of_deepseek(const CsvTable& table, int row, Json& base) {
  const bool mtp = table.text(row, "model").starts_with("DeepSeek");
  const auto stages = table.integer(row, "pp", 1, 1000) * table.integer(row, "vp", 1, 1000);
  const std::string_view last = mtp ? "mL" : "L";
  if (mtp) base["model"]["mtp_num_layers"] = 1;
  if (stages == 8) base["parallelism"]["pipeline_layout"] = fmt::format("Et*8|(t*8|)*6t*5{}", last);
  if (stages == 16) base["parallelism"]["pipeline_layout"] = fmt::format("Et*4|(t*4|)*14t{}", last);
  if (stages == 32) base["parallelism"]["pipeline_layout"] = fmt::format("Et|(tt|)*30{}", last);
}

// What the recipes of models with experts recompute.
void set_recomputed_modules(const CsvTable& table, int row, Json& base) {
  const std::string& model = table.text(row, "model");
  const std::string& type = table.text(row, "gpu_type");
  const bool graph = base["parallelism"].value("cuda_graph_impl", "") == "full_iteration";
  std::vector<std::string> modules;
  if (model.starts_with("Kimi")) modules = {"mla_up_proj"};
  if (model.starts_with("DeepSeek")) {
    if (type.find("H100") != std::string::npos) {
      modules = {"mla_up_proj", "mlp"};
    } else if (type.find("GB200") != std::string::npos) {
      // In 25.09 tokens beyond an expert's share are dropped, and less is stored.
      const std::string& release = table.text(row, "release");
      if (graph || release < "26.") modules = {"mla_up_proj"};
      if (!graph && release > "25.11") modules.emplace_back("mlp");
    } else if (!graph) {
      modules = {"mla_up_proj"};
    }
  }
  if (model.starts_with("GPT OSS") && type.find("B200") != std::string::npos && !graph)
    modules = {"layernorm", "moe_act"};
  if (modules.empty()) return;
  base["parallelism"]["recompute"] = "selective";
  base["parallelism"]["recompute_modules"] = modules;
}

// A row of a table of NVIDIA's. Where stages times layers do not divide, embedding and head count as a layer each, as
// in NeMo's recipe of Llama 3.1 405B.
struct NvidiaRow {
  CsvTable table;  // without the columns that are not read
  Json base;
};
NvidiaRow nvidia_row(CsvTable table, int row) {
  check_modeled(table, row);
  const Json models = base_of("nemo-models");
  const std::string& name = table.text(row, "model");
  if (!models.contains(name)) table.fail(row, "model", "expected a model of nemo-models.json");
  Json base = base_of("nemo");
  base["cluster"] = cluster_of(table, row);
  const std::string precision = precision_of(table, row);
  base["parallelism"]["precision"] = precision;
  // As in Megatron-Bridge's recipes.
  if (precision == "nvfp4") {
    base["parallelism"]["tp_comm_overlap"] = false;
  } else if (precision != "bf16") {
    base["parallelism"]["fp8_param_gather"] = true;
  }
  if (table.has("experts") && !table.text(row, "experts").empty()) {
    set_experts(table, row, base);
    set_recomputed_modules(table, row, base);
  }
  if (table.has("release") && table.text(row, "release").starts_with("24.")) base["software"] = "nemo-2024";
  base["model"] = {{"position_embedding_type", "rope"},
                   {"untie_embeddings_and_output_weights", true},
                   {"disable_bias_linear", true},
                   {"hidden_dropout", 0},
                   {"attention_dropout", 0}};
  base["model"].update(models.at(name));
  table.drop("schedule");   // "none" without a pipeline; interleaved where there are chunks
  table.drop("recompute");  // not published
  const auto layers = table.integer(row, "layers", 1, 1000);
  const auto stages = table.integer(row, "pp", 1, 1000) * table.integer(row, "vp", 1, 1000);
  if (layers == 61) {
    set_layers_of_deepseek(table, row, base);
  } else if (layers % stages != 0 && (layers + 2) % stages == 0) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), (layers + 2) / stages);
    --counts.front();
    --counts.back();
    base["parallelism"]["stage_layers"] = counts;
  }
  return {std::move(table), std::move(base)};
}

MeasuredIteration nvidia_run(const CsvTable& whole, int row) {
  const auto [table, base] = nvidia_row(whole, row);
  MeasuredIteration out = read_configuration(table, row, base);
  out.seconds = table.number(row, "iter_s", 1e-6, 1e6);
  out.setting = fmt::format("{}, {} GPUs, {}", table.text(row, "model"), table.text(row, "gpus"), out.setting);
  return out;
}

// The tables do not name what is recomputed. Uses what the recipe names, else the least recomputation that fits, and
// none if nothing does.
Prediction with_least_recomputation(Scenario scenario) {
  using enum Training::Recompute;
  if (scenario.training.recompute != none) return predict(Setup(scenario));
  scenario.training.recompute_modules = sim::cheap_modules(*scenario.model, scenario.training);
  std::optional<Prediction> first;
  for (const Training::Recompute recompute : {none, selective, full}) {
    scenario.training.recompute = recompute;
    Prediction prediction = predict(Setup(scenario));
    if (!prediction.fit || prediction.fit->fits) return prediction;
    if (!first) first = std::move(prediction);
  }
  return std::move(*first);
}

// "H100 fp8, experts"
std::string group_of(const CsvTable& table, int row, const Scenario& scenario) {
  const std::string& type = table.text(row, "gpu_type");
  return fmt::format("{} {}{}", type.starts_with("DGX-") ? type.substr(4) : type, precision_of(table, row),
                     scenario.model->has_experts() ? ", experts" : "");
}

sim::PlanSpace space_of_megatron(std::int64_t gpus) {
  sim::PlanSpace space{.gpus = gpus, .slices = {1}};
  for (const Family& family : all_families()) {
    if (family.in_megatron_lm) space.families.emplace_back(family.name);
  }
  return space;
}

// Configurations of a plan that are exact.
constexpr int kExactPlans = 100;

// Searches the plan and returns its ranking.
std::vector<int> ranking_of(sim::Plan& plan) {
  for (auto work = plan.next(); !work.empty(); work = plan.next()) {
    plan.take(work, plan.work_out(work));
    plan.end_round();
  }
  return plan.ranking();
}

// What a row shows of a plan.
struct Agreement {
  double slower = 0;  // the published configuration than the plan's first, in prediction
  std::string text;
};

// Sizes that experts choose; schedules and layers of stages follow from them.
auto sizes_of(const sim::PlanPoint& point) {
  return std::tuple(point.tp, point.cp, point.pp, point.ep, point.etp, point.micro_batch);
}

Agreement agreement_of(const CsvTable& table, int row) {
  const MeasuredIteration measured = nvidia_run(table, row);
  const Prediction published = with_least_recomputation(measured.scenario);
  Scenario base = measured.scenario;
  base.stage_layers.clear();
  base.training.recompute_modules = sim::cheap_modules(*base.model, base.training);
  const std::int64_t gpus = table.integer(row, "gpus", 1, 1 << 30);
  base.cluster->nodes_specified = false;
  base.cluster->use_for(gpus);
  sim::Plan plan(base, space_of_megatron(gpus), kExactPlans);
  const std::vector<int> ranking = ranking_of(plan);
  if (ranking.empty()) throw InputError(measured.place + ": no configuration fits");
  const auto seconds = [&](int point) { return to_seconds(plan.results()[to_size(point)].iteration); };
  const Training& training = measured.scenario.training;
  const std::tuple own(training.tp, training.cp, training.pp, training.ep, training.etp, training.micro_batch);
  const double published_s = to_seconds(published.metrics.makespan);
  std::set<decltype(sizes_of(sim::PlanPoint{}))> faster;
  double own_s = published_s;
  for (const int point : ranking) {
    if (sizes_of(plan.points()[to_size(point)]) == own) own_s = std::min(own_s, seconds(point));
  }
  for (const int point : ranking) {
    if (seconds(point) < own_s) faster.insert(sizes_of(plan.points()[to_size(point)]));
  }
  const bool exact = std::ssize(ranking) < kExactPlans || own_s <= seconds(ranking[kExactPlans - 1]);
  Agreement out{.slower = published_s / seconds(ranking.front()) - 1};
  out.text =
      fmt::format("{:+6.1f} %  sizes {}{}  {} s published{}, {} s best  {}\n          best: {}\n", 100 * out.slower,
                  exact ? "#" : "after #", faster.size() + (exact ? 1 : 0), four_digits(published_s),
                  published.fit && !published.fit->fits ? " (does not fit)" : "", four_digits(seconds(ranking.front())),
                  measured.setting, flags_of(plan.base(), plan.space(), plan.points()[to_size(ranking.front())]));
  return out;
}

// "3 configurations: slower by 1.2 % (median), at most 2.3 %"
std::string agreement_summary(const std::vector<double>& slower) {
  return fmt::format("{} configurations: slower by {:.1f} % (median), at most {:.1f} %\n", slower.size(),
                     100 * median(slower), 100 * *std::max_element(slower.begin(), slower.end()));
}

}  // namespace

TableScore score_nvidia(const CsvTable& table) {
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const MeasuredIteration measured = nvidia_run(table, row);
      const Prediction prediction = predict(Setup(measured.scenario));
      const Prediction fitting = with_least_recomputation(measured.scenario);
      score.verdicts.push_back({measured.place, measured.setting, true, !fitting.fit || fitting.fit->fits});
      score.comparisons.push_back(
          with_scenario({group_of(table, row, measured.scenario), measured.place, measured.setting, measured.seconds,
                         to_seconds(prediction.metrics.makespan), "s"},
                        measured.scenario));
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

void add_rows(const CsvTable& table, std::map<std::string, std::string>& rows) {
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const auto [part, base] = nvidia_row(table, row);
      const std::string group = group_of(table, row, read_configuration(part, row, base).scenario);
      add_document(configuration_document(part, row, base), table.place(row), part.number(row, "iter_s", 1e-6, 1e6),
                   rows[group]);
    } catch (const InputError&) {
      continue;  // reported with the scores
    }
  }
}

std::string agreement_text(const CsvTable& table) {
  std::string out = "published configurations against the best for Megatron-LM, both predicted:\n";
  std::map<std::string, std::vector<double>> slower;  // by group
  std::set<std::string> seen;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const MeasuredIteration measured = nvidia_run(table, row);
      const std::string group = group_of(table, row, measured.scenario);
      if (!seen.insert(group + measured.setting).second) continue;  // another release
      const Agreement one = agreement_of(table, row);
      slower[group].push_back(one.slower);
      out += group + ": " + one.text;
    } catch (const InputError& error) {
      out += fmt::format("skipped: {}\n", error.what());
    }
  }
  std::vector<double> all;
  for (const auto& [group, values] : slower) {
    out += group + ": " + agreement_summary(values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all.empty() ? out : out + agreement_summary(all);
}

}  // namespace sluice::bench::accuracy
