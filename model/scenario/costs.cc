#include "model/scenario/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "model/batches/batch.h"
#include "model/batches/context_group_cost.h"
#include "model/blocks/encoder.h"
#include "model/blocks/transformer_footprint.h"
#include "model/cost/analytic.h"
#include "model/cost/fitted.h"
#include "model/cost/run_memory.h"
#include "model/errors.h"
#include "model/to_size.h"

namespace sluice::model {
namespace {

// Calls `work`. Its errors start with the scenario, and `place`, such as "/cluster: ", unless they name one themselves.
template <typename Work>
auto with_place(const Scenario& scenario, const char* place, const Work& work) {
  try {
    return work();
  } catch (const InputError& error) {
    const std::string_view what = error.what();
    throw InputError(fmt::format("{}: {}{}", scenario.source, what.starts_with('/') ? "" : place, what));
  }
}

bool packs_documents(const Schedule& schedule) {
  return std::any_of(schedule.shapes().begin(), schedule.shapes().end(),
                     [](const MicrobatchShape& shape) { return !shape.documents.empty(); });
}

// Costs of documents on 1, 2, 4, ... and all of the data-parallel ranks. The length of a sequence, of which they have
// none, need only be divisible.
template <typename Make>
std::vector<std::unique_ptr<const CostModel>> costs_by_ranks(Training training, const Make& make) {
  std::vector<std::unique_ptr<const CostModel>> out;
  const int ranks = training.dp;
  training.sequence_length = std::int64_t{2} * ranks;
  for (training.cp = 1; training.cp <= ranks; training.cp *= 2) {
    training.dp = ranks / training.cp;
    out.push_back(make(training));
  }
  return out;
}

// Whether a tensor is an input of one of the modules whose inputs Megatron-LM can offload (offload_modules in
// megatron/core/transformer/transformer_config.py).
bool is_input_of(std::string_view module, std::string_view tensor) {
  constexpr std::pair<std::string_view, std::string_view> kInputs[] = {
      {"attn_norm", "layer input"},
      {"qkv_linear", "input of QKV"},
      {"core_attn", "queries"},
      {"core_attn", "keys and values"},
      {"attn_proj", "input of the projection"},
      {"mlp_norm", "input of norm 2"},
      {"expert_fc1", "inputs of the experts"},
      {"moe_act", "inputs of the experts' activation"}};
  return std::find(std::begin(kInputs), std::end(kInputs), std::pair(module, tensor)) != std::end(kInputs);
}

// A footprint that keeps what it has computed, of one shape.
class KeptBytes : public Footprint {
 public:
  explicit KeptBytes(std::shared_ptr<const Footprint> of) : of_(std::move(of)) {}

  StageBytes stage(int stage) const override {
    const auto [found, added] = stages_.try_emplace(of_->alike(stage));
    if (added) found->second = of_->stage(stage);
    return found->second;
  }
  int alike(int stage) const override { return of_->alike(stage); }
  std::string stage_formula(std::int64_t StageBytes::*field) const override { return of_->stage_formula(field); }
  SliceBytes slice(int stage, const MicrobatchShape& shape, int slice) const override {
    if (shape != shape_) {
      slices_.clear();
      shape_ = shape;
    }
    const auto [found, added] = slices_.try_emplace({stage, slice});
    if (added) found->second = of_->slice(stage, shape, slice);
    return found->second;
  }
  std::vector<SliceTensor> tensors(int stage, const MicrobatchShape& shape, int slice) const override {
    return of_->tensors(stage, shape, slice);
  }
  std::int64_t tied_embedding_bytes() const override { return of_->tied_embedding_bytes(); }

 private:
  std::shared_ptr<const Footprint> of_;
  mutable std::map<int, StageBytes> stages_;
  mutable std::map<std::pair<int, int>, SliceBytes> slices_;  // by stage and slice
  mutable MicrobatchShape shape_;
};

}  // namespace

std::vector<StageContents> split_stages(const Model& model, const Schedule& schedule,
                                        std::span<const int> explicit_layers, int first_layers, int last_layers,
                                        int mtp_stage, std::span<const Predictions> predictions) {
  if (schedule.vocabulary_barriers() > 0 && (model.mtp_layers > 0 || model.layer_embedding > 0)) {
    throw InputError(fmt::format("{}: {} are not modeled with vocabulary passes", schedule.family(),
                                 model.mtp_layers > 0 ? "layers of multi-token prediction" : "embeddings of layers"));
  }
  const int encoder = schedule.encoder_stages();
  if (encoder > 0 && !model.encoder) {
    throw InputError(fmt::format("{}: has stages of an encoder, which needs images (--images)", schedule.family()));
  }
  std::vector<StageContents> stages = split_layers(model, schedule.num_stages() - encoder, explicit_layers,
                                                   first_layers, last_layers, mtp_stage, predictions);
  if (encoder > 0) {
    std::vector<StageContents> parts = encoder_stages(*model.encoder, encoder);
    for (StageContents& part : parts) part.encoder_ranks = schedule.num_routes();
    stages.front().encoder_layers = 0;
    stages.front().encoder_begin = stages.front().encoder_end = false;
    stages.insert(stages.begin(), parts.begin(), parts.end());
  }
  const auto with_first = [&](int stage) {
    return std::all_of(schedule.routes().begin(), schedule.routes().end(), [&](const std::vector<int>& route) {
      const auto& held = schedule.stages_of(route[to_size(stage)]);
      return std::find(held.begin(), held.end(), encoder) != held.end();
    });
  };
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    StageContents& of = stages[to_size(stage)];
    if ((of.tied_copy || of.mtp_embedding) && with_first(stage)) of.tied_copy = of.mtp_embedding = false;
    if (schedule.vocabulary_barriers() == 0) continue;
    of.head = of.tied_copy = false;
    if (schedule.has_vocabulary(stage)) of.vocabulary_ranks = schedule.num_ranks();
  }
  return stages;
}

ScenarioCosts::ScenarioCosts(Scenario scenario, const Schedule& schedule)
    : ScenarioCosts(std::move(scenario), schedule, schedule.num_microbatches()) {}

ScenarioCosts::ScenarioCosts(Scenario scenario, const Schedule& schedule, int microbatches)
    : ScenarioCosts(std::move(scenario), schedule, microbatches, nullptr, nullptr) {}

ScenarioCosts::ScenarioCosts(Scenario scenario, const Schedule& schedule, const std::vector<StageContents>& stages)
    : ScenarioCosts(std::move(scenario), schedule, schedule.num_microbatches(), &stages, nullptr) {}

ScenarioCosts::ScenarioCosts(Scenario scenario, const Schedule& schedule, const ScenarioCosts* like, PriceStore& prices)
    : ScenarioCosts(std::move(scenario), schedule, schedule.num_microbatches(), nullptr, like, &prices) {
  if (footprint_ != nullptr && (like == nullptr || footprint_ != like->footprint_)) {
    footprint_ = std::make_shared<KeptBytes>(std::move(footprint_));
  }
}

ScenarioCosts::ScenarioCosts(Scenario scenario, const Schedule& schedule, int microbatches,
                             const std::vector<StageContents>* stages, const ScenarioCosts* like, PriceStore* prices)
    : scenario_(std::move(scenario)) {
  scenario_.training.pp = schedule.num_ranks();
  scenario_.training.vocabulary_barriers = schedule.vocabulary_barriers();
  // The ranks of a schedule file may be more than those of the scenario, without --pp one.
  if (scenario_.cluster) scenario_.cluster->use_for(scenario_.training.world_size());
  scenario_.microbatches = microbatches;
  std::optional<CostTable> table;
  if (scenario_.model && scenario_.cost == CostKind::fitted) {
    table = read_cost_table(scenario_.cost_file);
    check_model_shape(table->shape, table->source, scenario_.model->transformer("times of a cost file"));
  }
  if (scenario_.model) {
    split_model(schedule, stages);
    if (like != nullptr && scenario_.cost == CostKind::analytic && like->scenario_.cost == CostKind::analytic &&
        scenario_.training == like->scenario_.training && stages_ == like->stages_ &&
        scenario_.training.activation_offload == 0) {
      footprint_ = like->footprint_;
      cost_ = like->cost_;
      return;
    }
    with_place(scenario_, "/parallelism: ", [&] { make_footprint(schedule, table); });
  }
  make_cost(schedule, std::move(table), prices);
  if (scenario_.training.activation_offload != 0) make_offload(schedule);
}

void ScenarioCosts::split_model(const Schedule& schedule, const std::vector<StageContents>* stages) {
  Training& training = scenario_.training;
  if (names_file(scenario_.schedule)) training.micro_batch = schedule.shapes()[0].sequences;
  // A schedule that does not specify lengths has one token per slice.
  const std::int64_t tokens = schedule.shapes()[0].tokens();
  if (training.sequence_length == 0 && tokens > 1) training.sequence_length = tokens;
  if (training.sequence_length == 0) {
    throw InputError(fmt::format("{}: /batch/sequence_length: required with a model (--seq-length)", scenario_.source));
  }
  if (training.cp > 1 && schedule.sliced()) {
    throw InputError(
        fmt::format("{}: /parallelism/cp: slices of a sequence are not modeled with context parallelism, "
                    "got {}",
                    scenario_.source, training.cp));
  }
  if (schedule.forward_only() && !training.forward_only()) training.work = Training::Work::evaluation;
  const char* const place = scenario_.stage_layers.empty() ? "/parallelism: " : "/parallelism/stage_layers: ";
  stages_ = with_place(scenario_, place, [&] {
    if (stages != nullptr) return *stages;
    return split_stages(*scenario_.model, schedule, scenario_.stage_layers, scenario_.first_stage_layers,
                        scenario_.last_stage_layers, scenario_.mtp_stage, scenario_.predictions);
  });
  training.fused_latent_rotary = scenario_.software.fused_latent_rotary;
  training.any_layout = scenario_.cluster && scenario_.cluster->gpu.gemm_8bit.block_scales;
  training.deferred_head_gradients = std::min(training.deferred_head_gradients, scenario_.microbatches);
}

// That of the executor, if it measured the costs.
void ScenarioCosts::make_footprint(const Schedule& schedule, const std::optional<CostTable>& table) {
  const Model& model = *scenario_.model;
  footprint_ = std::make_unique<TransformerFootprint>(model, scenario_.training, stages_, library_workspace());
  if (!table || !has_run_memory(*table, model, scenario_.training)) return;
  footprint_ = std::make_unique<RunFootprint>(table->memory, model, scenario_.training, stages_, schedule);
}

std::int64_t ScenarioCosts::library_workspace() const {
  if (!scenario_.cluster) return 0;
  const Gpu& gpu = scenario_.cluster->gpu;
  const bool grouped = scenario_.model->has_experts() && scenario_.training.grouped_experts;
  return gpu.workspace_bytes + (grouped ? gpu.grouped_workspace_bytes : 0);
}

void ScenarioCosts::make_cost(const Schedule& schedule, std::optional<CostTable> table, PriceStore* prices) {
  const auto require = [&](bool there, const char* what) {
    if (!there) throw InputError(fmt::format("{}: {}", scenario_.source, what));
  };
  const bool grouped = scenario_.documents && !scenario_.documents->groups.empty();
  require(!grouped || scenario_.cost == CostKind::analytic,
          "/batch/dynamic_cp: required: the analytic cost of a model on a cluster");
  const auto analytic_of = [&](const Training& training) {
    std::vector<StageContents> stages = stages_;
    if (scenario_.training.work == Training::Work::prefill) stages.back().head = false;
    return with_place(scenario_, "/cluster: ", [&] {
      return std::make_unique<AnalyticCost>(*scenario_.model, training, stages, *scenario_.cluster, scenario_.software,
                                            scenario_.kernel_times.value_or(KernelTimes{}));
    });
  };
  const auto analytic = [&] { return analytic_of(scenario_.training); };
  switch (scenario_.cost) {
    case CostKind::uniform:
      require(schedule.encoder_stages() == 0 || !scenario_.uniform.stages.empty() ||
                  !scenario_.uniform.stage_weights.empty(),
              "/cost/stages: required with stages of an encoder: the times of each stage");
      cost_ = with_place(scenario_, "",
                         [&] { return std::make_unique<UniformCost>(scenario_.uniform, schedule, timed_tokens()); });
      return;
    case CostKind::analytic:
      require(scenario_.model.has_value(), "/model: required by the analytic cost (--model)");
      require(scenario_.cluster.has_value(), "/cluster: required by the analytic cost (--cluster)");
      if (!grouped) {
        auto made = analytic();
        if (prices != nullptr) made->keep_in(*prices);
        cost_ = std::move(made);
        return;
      }
      cost_ = std::make_unique<ContextGroupCost>(costs_by_ranks(scenario_.training, analytic_of),
                                                 scenario_.documents->groups, scenario_.training.dp);
      return;
    case CostKind::fitted: {
      require(scenario_.model.has_value(), "/model: required by the fitted cost for the layers of a stage (--model)");
      const auto has_context = [&](PartKind part) {
        const auto& curve = table->curve(part, OpKind::F);
        return curve && curve->context[3] > 0;
      };
      require(!packs_documents(schedule) || has_context(PartKind::layer) || has_context(PartKind::attention),
              "/batch/lengths: packed documents require a cost file of a profile with context (prefixes of slices)");
      refuse_vocabulary(schedule, "a cost file has no times of them");
      require(schedule.encoder_stages() == 0, "/parallelism/encoder_placement: a cost file has no times of an encoder");
      std::unique_ptr<const CostModel> rest;
      if (scenario_.cluster) rest = analytic();
      cost_ = std::make_unique<FittedCost>(std::move(*table), scenario_.training, stages_, std::move(rest),
                                           count_parameters(schedule));
      return;
    }
  }
}

// The options refer to the footprint and the cost model, which stay where they are.
void ScenarioCosts::make_offload(const Schedule& schedule) {
  const auto require = [&](bool condition, const char* rule) {
    if (condition) return;
    throw InputError(fmt::format("{}: /parallelism/offload_activations: {}", scenario_.source, rule));
  };
  require(scenario_.cost != CostKind::uniform || scenario_.uniform.copy,
          "requires the time of a copy to the host (--uniform copy=X)");
  require(scenario_.cost != CostKind::fitted || scenario_.cluster,
          "requires a cluster, as a cost file has no times of copies to the host (--cluster)");
  require(!packs_documents(schedule), "not modeled with documents of different length (--lengths)");
  require(!scenario_.communicators, "not modeled with queues of communicators (--communicators)");
  offload_.emplace().window = scenario_.training.offload_window;
  const double fraction = scenario_.training.activation_offload;
  if (fraction != Training::kAutomaticOffload) offload_->fraction = fraction;
  const bool recompute = lowering_options(schedule.weight_policy()).recompute;
  offload_->compute_s = [cost = cost_.get(), recompute](const Schedule& of, const Op& op, const Op* partner) {
    const auto shape = [&](const Op& each) -> const MicrobatchShape& { return of.shape(each.microbatch); };
    double again = 0;
    for (const Op* each : {&op, partner}) {
      if (!recompute || each == nullptr || (each->kind != OpKind::B && each->kind != OpKind::I)) continue;
      again += cost->recompute_s(each->stage, shape(*each), each->slice);
    }
    if (partner == nullptr) return again + cost->compute_s(op.kind, op.stage, shape(op), op.slice);
    const auto [forward, backward] = op.kind == OpKind::F ? std::pair(op, *partner) : std::pair(*partner, op);
    return again + cost->joint_s(forward.stage, shape(forward), forward.slice, backward.kind, backward.stage,
                                 shape(backward), backward.slice);
  };
  offload_->copy_s = [cost = cost_.get(), footprint = footprint_.get()](const Schedule& of, const Op& op) {
    const MicrobatchShape& shape = of.shape(op.microbatch);
    const SliceBytes bytes = footprint == nullptr ? SliceBytes{} : footprint->slice(op.stage, shape, op.slice);
    return cost->host_copy_s(op.stage, shape, op.slice, stored_bytes(bytes, shape.num_slices()).sum());
  };
  if (scenario_.training.offload_modules.empty()) return;
  require(footprint_ != nullptr, "offload_modules requires a model (--model)");
  offload_->most = [footprint = footprint_.get(), modules = scenario_.training.offload_modules](const Schedule& of,
                                                                                                const Op& op) {
    const MicrobatchShape& shape = of.shape(op.microbatch);
    const auto all = stored_bytes(footprint->slice(op.stage, shape, op.slice), shape.num_slices()).sum();
    SliceBytes inputs;
    for (const SliceTensor& tensor : footprint->tensors(op.stage, shape, op.slice)) {
      const bool copied = std::any_of(modules.begin(), modules.end(),
                                      [&](const std::string& module) { return is_input_of(module, tensor.name); });
      if (copied) inputs.*tensor.field += tensor.count * tensor.bytes;
    }
    const auto chosen = static_cast<double>(stored_bytes(inputs, shape.num_slices()).sum());
    return all > 0 ? chosen / static_cast<double>(all) : 0;
  };
}

std::int64_t ScenarioCosts::timed_tokens() const {
  return scenario_.documents ? std::max<std::int64_t>(1, scenario_.documents->request.most_tokens) : 0;
}

ParameterCounts ScenarioCosts::count_parameters(const Schedule& schedule) const {
  ParameterCounts counts;
  for (const StageContents& stage : stages_) {
    const Training& training = scenario_.training;
    counts.of_stage.push_back(
        stage_parameters_per_device(*scenario_.model, training.tp, stage, training.expert_ranks()));
    counts.experts_of_stage.push_back(
        stage_expert_parameters_per_device(*scenario_.model, stage, training.expert_ranks()));
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::int64_t on_rank = 0;
    for (const int stage : schedule.stages_of(rank)) on_rank += counts.of_stage[stage];
    counts.most_on_a_rank = std::max(counts.most_on_a_rank, on_rank);
  }
  return counts;
}

LoweringOptions ScenarioCosts::lowering_options(WeightPolicy policy) const {
  const Training& training = scenario_.training;
  LoweringOptions options{.footprint = footprint_.get(), .offload = offload_ ? &*offload_ : nullptr};
  if (!scenario_.model) return options;
  const bool experts = scenario_.model->has_experts();
  options.data_parallel = std::max(training.data_ranks(), experts ? training.expert_data_ranks() : 1);
  // What ops gather and reduce themselves is part of their cost.
  options.reduce_gradients = !training.reduces_per_op();
  options.overlap_grad_reduce = training.overlap_grad_reduce || training.zero_stage() > 1;
  options.buckets = scenario_.cost == CostKind::analytic && options.reduce_gradients;
  options.reduce_runs = training.reduces_runs();
  const bool whole = training.zero_stage() < 3;
  options.gather_parameters = training.distributed_optimizer && (whole || !training.gathers_per_op());
  options.overlap_param_gather = options.gather_parameters && (training.overlap_param_gather || !whole);
  options.sharded_actions = options.gather_parameters && !whole;
  options.blocking_transfers = scenario_.cost != CostKind::uniform && scenario_.blocks_transfers();
  if (training.zero_stage() > 1 && training.vocabulary_barriers > 0) {
    throw InputError(fmt::format("{}: /parallelism/zero: expected 0 or 1 with vocabulary passes, got {}",
                                 scenario_.source, training.zero_stage()));
  }
  options.tied_embedding = scenario_.model->tied_embeddings && training.vocabulary_barriers == 0;
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if (stages_[stage].mtp_layers > 0) options.mtp_stages.push_back(static_cast<int>(stage));
    if (stages_[stage].head) options.loss_stages.push_back(static_cast<int>(stage));
  }
  const bool flush = policy == WeightPolicy::flush;
  options.global_norm = scenario_.clip_gradients && flush && scenario_.cost != CostKind::uniform;
  options.recompute = training.recompute == Training::Recompute::full ||
                      (training.recompute == Training::Recompute::selective && training.has_modules_to_repeat());
  return options;
}

}  // namespace sluice::model
