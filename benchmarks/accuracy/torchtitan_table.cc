#include "benchmarks/accuracy/torchtitan_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/accuracy/scenarios.h"
#include "model/errors.h"
#include "sim/calibration/measured_iterations.h"
#include "sim/engine/predict.h"

namespace sluice::bench::accuracy {
namespace {

bool is_true(const CsvTable& table, int row, const char* column) { return table.text(row, column) == "True"; }

// "selective": every second layer, as its option 2 and, nearly, its option op do.
void set_recompute(const CsvTable& table, int row, Json& parallelism) {
  const std::string& word = table.text(row, "recompute");
  if (word == "none") return;
  parallelism["recompute"] = "full";
  if (word == "full") return;
  if (word != "selective" && word != "per-op selective") table.fail(row, "recompute", "expected a known word");
  parallelism["recompute_layers"] = table.integer(row, "layers", 2, 1000) / 2;
}

// One scale per tensor is gathered in 8 bits, one per row in 16 (torchao's enable_fsdp_float8_all_gather).
void set_precision(const CsvTable& table, int row, Json& parallelism) {
  const std::string& word = table.text(row, "precision");
  if (word == "bf16") return;
  if (!word.starts_with("float8")) table.fail(row, "precision", "expected bf16 or float8");
  parallelism["precision"] = "fp8-current";
  parallelism["fp8_param_gather"] = word != "float8 rowwise";
}

std::string torchtitan_cluster(const CsvTable& table, int row) {
  const std::string& type = table.text(row, "gpu_type");
  if (type.starts_with("H100-96GB")) return "h100-96gb";
  if (type == "H200") return "dgx-h200";
  table.fail(row, "gpu_type", "expected H100-96GB or H200");
}

// A pipeline has as many microbatches as stages, and counts embedding and head as layers (torchtitan's defaults at the
// time of the measurements, 2024).
Json torchtitan_document(const CsvTable& table, int row) {
  Json out = base_of("torchtitan");
  Json& parallelism = out["parallelism"];
  const auto number = [&](const char* column) { return table.integer(row, column, 1, 1 << 30); };
  for (const char* key : {"tp", "pp", "cp"}) parallelism[key] = number(key);
  parallelism["dp"] = number("dp_shard");
  parallelism["vpp"] = number("vp");
  parallelism["sequence_parallel"] = number("tp") > 1;
  parallelism["tp_comm_overlap"] = is_true(table, row, "async_tp");
  // From 2025 on, torch.compile includes the loss.
  if (is_true(table, row, "compile") && table.has("source") &&
      table.text(row, "source").find("2025") != std::string::npos) {
    parallelism["fused_cross_entropy"] = true;
    parallelism["cross_entropy_fusion_impl"] = "te";
  }
  set_recompute(table, row, parallelism);
  set_precision(table, row, parallelism);
  const auto stages = number("pp") * number("vp");
  if (stages > 1) {
    std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), (number("layers") + 2) / stages);
    --layers.front();
    --layers.back();
    parallelism["stage_layers"] = layers;
  }
  for (const auto& [key, column] :
       {std::pair("num_layers", "layers"), std::pair("hidden_size", "hidden"),
        std::pair("num_attention_heads", "heads"), std::pair("num_query_groups", "kv_heads"),
        std::pair("ffn_hidden_size", "ffn"), std::pair("vocab_size", "vocab")}) {
    out["model"][key] = number(column);
  }
  out["batch"] = {{"micro_batch", number("local_batch") / stages},
                  {"global_batch", number("gbs")},
                  {"sequence_length", number("seq")}};
  out["schedule"] = {{"name", number("vp") > 1 ? "interleaved-1f1b" : "1f1b"}};
  out["cluster"] = torchtitan_cluster(table, row);
  const bool rowwise = table.text(row, "precision") == "float8 rowwise";
  out["software"] = rowwise ? "torchtitan-rowwise" : is_true(table, row, "compile") ? "torchtitan" : "torchtitan-eager";
  return out;
}

double seconds_of(const CsvTable& table, int row) {
  const auto tokens =
      static_cast<double>(table.integer(row, "gbs", 1, 1 << 30) * table.integer(row, "seq", 1, 1 << 30));
  const auto gpus = static_cast<double>(table.integer(row, "gpus", 1, 1 << 30));
  return tokens / gpus / table.number(row, "tokens_s_gpu", 1e-6, 1e9);
}

std::string setting_of(const CsvTable& table, int row) {
  std::string out = table.text(row, "model") + ", " + table.text(row, "gpus") + " GPUs";
  for (const char* column :
       {"seq", "dp_shard", "tp", "pp", "vp", "cp", "local_batch", "recompute", "precision", "compile", "async_tp"}) {
    out += fmt::format(", {} {}", column, table.text(row, column));
  }
  return out;
}

// The table has reserved memory. At the end of a batch, PyTorch's schedules copy the kept logits of all microbatches
// into one tensor (torch/distributed/pipelining/schedules.py, _merge_outputs); no block that is free by then is as
// large, so that it adds to what is reserved, whatever has been freed.
std::int64_t merged_logit_bytes(const Scenario& scenario) {
  const Training& training = scenario.training;
  if (training.pp == 1) return 0;
  const std::int64_t rows =
      std::int64_t{scenario.microbatches} * training.micro_batch * training.sequence_length / training.cp;
  return 2 * rows * (padded_vocab(*scenario.model, training.tp) / training.tp);
}

}  // namespace

TableScore score_torchtitan(const CsvTable& table) {
  TableScore score;
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const std::string setting = setting_of(table, row);
      const Scenario scenario = scenario_from_json(torchtitan_document(table, row), table.place(row), "");
      const Prediction prediction = predict(Setup(scenario));
      score.verdicts.push_back({table.place(row), setting, true, prediction.fit->fits});
      score.comparisons.push_back(with_scenario({"iteration time", table.place(row), setting, seconds_of(table, row),
                                                 to_seconds(prediction.metrics.makespan), "s"},
                                                scenario));
      if (table.text(row, "peak_mem_GiB").empty()) continue;
      const auto tensors = static_cast<double>(prediction.fit->needed_bytes - scenario.cluster->gpu.reserved_bytes +
                                               merged_logit_bytes(scenario));
      score.comparisons.push_back({"peak memory", table.place(row), setting,
                                   table.number(row, "peak_mem_GiB", 1e-3, 1e6), tensors / (1 << 30), "GiB"});
    } catch (const InputError& error) {
      score.skipped.push_back({table.place(row), error.what()});
    }
  }
  return score;
}

void add_torchtitan_rows(const CsvTable& table, std::map<std::string, std::string>& rows) {
  for (int row = 0; row < table.num_rows(); ++row) {
    try {
      const Json document = torchtitan_document(table, row);
      const std::string group =
          fmt::format("{} {} {}{}", document.at("software").get<std::string>(),
                      document.at("cluster").get<std::string>(), document.at("parallelism").value("precision", "bf16"),
                      table.integer(row, "cp", 1, 1 << 20) > 1 ? " context" : "");
      add_document(document, table.place(row), seconds_of(table, row), rows[group]);
    } catch (const InputError&) {
      continue;  // reported with the scores
    }
  }
}

}  // namespace sluice::bench::accuracy
