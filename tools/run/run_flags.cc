#include "tools/run/run_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/errors.h"
#include "model/scenario/setup.h"
#include "model/schedule/family.h"

namespace sluice::tools {
namespace {

using Json = nlohmann::json;

// What a run on this machine has no use for, or cannot do yet.
constexpr std::string_view kNotOfRuns[] = {"--memory-cap",
                                           "--time-budget",
                                           "--placement",
                                           "--use-tp-pp-dp-mapping",
                                           "--cp",
                                           "--cp-comm-type",
                                           "--ep",
                                           "--etp",
                                           "--sequence-parallel",
                                           "--recompute-num-layers",
                                           "--use-distributed-optimizer",
                                           "--cross-entropy-loss-fusion",
                                           "--overlap-p2p-communication",
                                           "--cluster",
                                           "--nodes",
                                           "--software",
                                           "--calibration",
                                           "--jitter",
                                           "--trials",
                                           "--seed",
                                           "--uniform",
                                           "--cost",
                                           "--slow-rank",
                                           "--qk-layernorm",
                                           "--num-experts",
                                           "--moe-router-topk",
                                           "--moe-ffn-hidden-size",
                                           "--moe-shared-expert-intermediate-size",
                                           "--moe-layer-freq",
                                           "--multi-latent-attention",
                                           "--q-lora-rank",
                                           "--kv-lora-rank",
                                           "--qk-head-dim",
                                           "--qk-pos-emb-head-dim",
                                           "--v-head-dim"};

Json built_in_model() {
  return {{"num_layers", 4},
          {"hidden_size", 128},
          {"num_attention_heads", 4},
          {"vocab_size", 256},
          {"max_position_embeddings", 1024},
          {"position_embedding_type", "learned_absolute"},
          {"hidden_dropout", 0.0},
          {"attention_dropout", 0.0}};
}

void set_default(Json& document, const char* pointer, const Json& value) {
  Json& place = document[Json::json_pointer(pointer)];
  if (place.is_null()) place = value;
}

bool has(const Json& document, const char* pointer) {
  const Json::json_pointer at(pointer);
  return document.contains(at) && !document.at(at).is_null();
}

Precision precision_of(const std::string& asked, bool on_devices) {
  if (on_devices) {
    if (asked == "float32" || asked == "float64") {
      throw InputError(fmt::format("--precision {}: GPUs compute in bf16 or fp16 (master weights are float32)", asked));
    }
    return asked == "fp16" ? Precision::float16 : Precision::bfloat16;
  }
  if (asked == "bf16" || asked == "fp16") {
    throw InputError(fmt::format("--precision {}: the CPU computes in float32 or float64", asked));
  }
  return asked == "float64" ? Precision::float64 : Precision::float32;
}

}  // namespace

struct RunFlags::Values {
  std::string file;
  std::unique_ptr<ScenarioFlags> scenario;
  std::string precision;
  std::string data;
  std::uint64_t seed = 1;
  std::string optimizer = "adam";
  double learning_rate = 1e-3;
  double weight_decay = 0.01;
  double clip = 1;
};

RunFlags::RunFlags(CLI::App& command, bool own_schedule_flag) : values_(std::make_unique<Values>()) {
  Values& values = *values_;
  command.add_option("scenario", values.file, "scenario file; flags are laid over it");
  std::vector<std::string_view> without(std::begin(kNotOfRuns), std::end(kNotOfRuns));
  if (own_schedule_flag) without.push_back("--schedule");
  values.scenario = std::make_unique<ScenarioFlags>(command, without);
  const char* kTraining = "Training";
  command
      .add_option("--precision", values.precision,
                  "float32 (default) or float64 on the CPU; bf16 (default) or fp16, with a loss scale, on GPUs")
      ->check(CLI::IsMember({"float32", "float64", "bf16", "fp16"}))
      ->group(kTraining);
  command.add_option("--data", values.data, "text file to train on, bytes as tokens (default: synthetic tokens)")
      ->group(kTraining);
  command.add_option("--seed", values.seed, "of weights, samples and synthetic tokens (default 1)")->group(kTraining);
  command.add_option("--optimizer", values.optimizer, "adam (default; with decoupled weight decay) or sgd")
      ->check(CLI::IsMember({"adam", "sgd"}))
      ->group(kTraining);
  const auto at_least_0 = CLI::Range(0.0, std::numeric_limits<double>::max());
  command.add_option("--lr", values.learning_rate, "learning rate (default 0.001)")
      ->check(at_least_0)
      ->group(kTraining);
  command.add_option("--weight-decay", values.weight_decay, "(default 0.01)")->check(at_least_0)->group(kTraining);
  command
      .add_option("--clip-grad", values.clip,
                  "greatest norm of the gradients (default 1; 0: no clipping; never without a flush)")
      ->check(at_least_0)
      ->group(kTraining);
}

RunFlags::~RunFlags() = default;

Scenario RunFlags::scenario(const std::string& schedule, bool unsliced) const {
  Json document = values_->scenario->document(values_->file);
  if (!schedule.empty()) document[Json::json_pointer("/schedule/name")] = schedule;
  if (unsliced && document.contains("schedule") && document.at("schedule").is_object()) {
    for (const char* key : {"slices", "slice_lengths", "slicing"}) document["schedule"].erase(key);
  }
  const bool built_in = !has(document, "/model");
  if (built_in) {
    document["model"] = built_in_model();
    set_default(document, "/batch/sequence_length", 128);
    set_default(document, "/batch/micro_batch", 2);
  }
  set_default(document, "/schedule/name", "1f1b");
  const std::string name = document.at(Json::json_pointer("/schedule/name")).is_string()
                               ? document.at(Json::json_pointer("/schedule/name")).get<std::string>()
                               : "";
  if (!names_file(name)) {
    set_default(document, "/parallelism/pp", 2);
    if (!has(document, "/batch/global_batch")) set_default(document, "/batch/microbatches", 8);
  }
  // Nothing is priced here.
  document["cost"] = {{"kind", "uniform"}, {"f", 1}, {"b", 1}, {"w", 1}};
  document.erase("calibration");
  document.erase("perturbation");
  Scenario scenario = ScenarioFlags::read(document, values_->file);
  const Training& training = scenario.training;
  const auto refuse = [&](bool asked, const char* what) {
    if (asked) throw InputError(fmt::format("{}: a run cannot do {} yet", scenario.source, what));
  };
  refuse(training.cp > 1, "context parallelism (/parallelism/cp)");
  refuse(training.ep > 1, "expert parallelism (/parallelism/ep)");
  refuse(training.sequence_parallel, "sequence parallelism (/parallelism/sequence_parallel)");
  refuse(training.distributed_optimizer, "a distributed optimizer (/parallelism/distributed_optimizer)");
  refuse(training.recompute == Training::Recompute::selective, "selective recomputation (/parallelism/recompute)");
  refuse(training.recompute_layers > 0, "recomputation of some layers (/parallelism/recompute_layers)");
  refuse(scenario.schedule == kAutomatic, "an automatic schedule: let 'sluice simulate --schedule auto' write it");
  if (!scenario.model) throw InputError(scenario.source + ": /model: required (--model)");
  if (built_in) scenario.model->name = kBuiltInModel;
  return scenario;
}

RunSpec RunFlags::spec(const Scenario& scenario, const DeviceKernels* kernels) const {
  RunSpec spec{.model = *scenario.model, .kernels = kernels};
  spec.precision = precision_of(values_->precision, kernels != nullptr);
  spec.data_parallel = scenario.training.dp;
  spec.tensor_parallel = scenario.training.tp;
  spec.stage_layers = scenario.stage_layers;
  spec.first_stage_layers = scenario.first_stage_layers;
  spec.last_stage_layers = scenario.last_stage_layers;
  spec.recompute = scenario.training.recompute == Training::Recompute::full;
  spec.overlap_grad_reduce = scenario.training.overlap_grad_reduce;
  spec.scatter_gather = scenario.training.scatter_gather;
  const bool flush = names_file(scenario.schedule) || !find_family(scenario.schedule).asynchronous;
  spec.clip_gradients = flush ? values_->clip : 0;
  spec.optimizer.kind = values_->optimizer == "sgd" ? OptimizerStep::Kind::sgd : OptimizerStep::Kind::adam;
  spec.optimizer.learning_rate = values_->learning_rate;
  spec.optimizer.weight_decay = values_->weight_decay;
  spec.seed = values_->seed;
  return spec;
}

Schedule RunFlags::schedule(const Scenario& scenario, int batches) const {
  Scenario asked = scenario;
  if (!names_file(asked.schedule) && find_family(asked.schedule).asynchronous && asked.batches == 0) {
    asked.batches = batches;
  }
  return make_schedule(asked);
}

TokenSource RunFlags::tokens(const RunPlan& plan) const {
  const auto vocabulary = static_cast<int>(plan.spec().model.vocab);
  if (values_->data.empty()) return TokenSource::synthetic(vocabulary, plan.sequence_length(), values_->seed);
  return TokenSource::of_text(values_->data, vocabulary, plan.sequence_length(), values_->seed);
}

std::string RunFlags::data_name() const {
  return values_->data.empty() ? "synthetic" : std::filesystem::path(values_->data).filename().string();
}

}  // namespace sluice::tools
