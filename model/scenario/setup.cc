#include "model/scenario/setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/cost/analytic.h"
#include "model/cost/fitted.h"
#include "model/errors.h"
#include "model/input/files.h"
#include "model/schedule/family.h"
#include "model/schedule/pytorch_csv.h"
#include "model/schedule/schedule_file.h"
#include "model/workload/transformer_footprint.h"

namespace sluice {
namespace {

void agree(const Scenario& scenario, const char* field, std::int64_t asked, std::int64_t has) {
  if (asked == 0 || asked == has) return;
  throw InputError(fmt::format("{}: {}: expected {}, as the schedule {} has it, got {}", scenario.source, field, has,
                               scenario.schedule, asked));
}

Schedule read_schedule(const Scenario& scenario) {
  const std::string text = read_file(scenario.schedule);
  const bool csv = scenario.schedule.ends_with(".csv");
  Schedule schedule = csv ? schedule_from_csv(text, scenario.schedule) : schedule_from_json(text, scenario.schedule);
  agree(scenario, "/parallelism/pp", scenario.training.pp, schedule.num_ranks());
  agree(scenario, "/parallelism/vpp", scenario.chunks, schedule.num_chunks());
  agree(scenario, "/batch/microbatches", scenario.microbatches, schedule.num_microbatches());
  agree(scenario, "/schedule/batches", scenario.batches, schedule.num_batches());
  if (scenario.shape.num_slices() > 1)
    agree(scenario, "/schedule/slices", scenario.shape.num_slices(), schedule.max_slices());
  if (scenario.training.sequence_length > 0) {
    for (const MicrobatchShape& shape : schedule.shapes()) {
      agree(scenario, "/batch/sequence_length", scenario.training.sequence_length, shape.tokens());
    }
  }
  return schedule;
}

}  // namespace

OpGraph lower_named(const Schedule& schedule, const LoweringOptions& options, const std::string& name) {
  try {
    return lower(schedule, options);
  } catch (const ScheduleError& error) {
    if (!names_file(name)) throw;
    throw ScheduleError(name + ": " + error.what());
  }
}

Schedule make_schedule(const Scenario& scenario) {
  if (names_file(scenario.schedule)) return read_schedule(scenario);
  const Family& family = find_family(scenario.schedule);
  if (scenario.training.pp == 0) {
    throw InputError(
        fmt::format("{}: /parallelism/pp: required: the number of pipeline ranks (--pp)", scenario.source));
  }
  FamilyParams params{.ranks = scenario.training.pp,
                      .chunks = scenario.chunks,
                      .microbatches = scenario.microbatches,
                      .batches = scenario.batches,
                      .group = scenario.group,
                      .shape = scenario.shape};
  if (params.microbatches == 0) {
    throw InputError(
        fmt::format("{}: /batch: required: microbatches (--microbatches), or global_batch (--gbs)", scenario.source));
  }
  return make_schedule(family, std::move(params));
}

Setup::Setup(const Scenario& scenario) : Setup(scenario, make_schedule(scenario)) {}

Setup::Setup(const Scenario& scenario, Schedule schedule) : scenario_(scenario), schedule_(std::move(schedule)) {
  scenario_.training.pp = schedule_.num_ranks();
  scenario_.microbatches = schedule_.num_microbatches();
  if (scenario_.model) split_model();
  make_cost();
  graph_.emplace(lower_named(schedule_, lowering_options(), scenario_.schedule));
}

void Setup::split_model() {
  Training& training = scenario_.training;
  if (training.sequence_length == 0) training.sequence_length = schedule_.shapes()[0].tokens();
  if (names_file(scenario_.schedule)) training.micro_batch = schedule_.shapes()[0].sequences;
  if (training.sequence_length <= 1) {
    throw InputError(fmt::format("{}: /batch/sequence_length: required with a model (--seq-length)", scenario_.source));
  }
  if (training.cp > 1 && schedule_.sliced()) {
    throw InputError(
        fmt::format("{}: /parallelism/cp: slices of a sequence are not modelled with context parallelism, "
                    "got {}",
                    scenario_.source, training.cp));
  }
  const int stages = schedule_.num_stages();
  stages_ = split_layers(*scenario_.model, stages, scenario_.stage_layers, scenario_.first_stage_layers,
                         scenario_.last_stage_layers);
  // Where every rank of the last stage has the first one too, the head reads the embedding that is there.
  const auto together = [&](const std::vector<int>& route) {
    const auto& ranks = schedule_.stages_of(route.back());
    return std::find(ranks.begin(), ranks.end(), 0) != ranks.end();
  };
  if (std::all_of(schedule_.routes().begin(), schedule_.routes().end(), together)) stages_.back().tied_copy = false;
  footprint_ = std::make_unique<TransformerFootprint>(*scenario_.model, training, stages_);
}

void Setup::make_cost() {
  const auto require = [&](bool there, const char* what) {
    if (!there) throw InputError(fmt::format("{}: {}", scenario_.source, what));
  };
  switch (scenario_.cost) {
    case CostKind::uniform: cost_ = std::make_unique<UniformCost>(scenario_.uniform, schedule_); return;
    case CostKind::analytic:
      require(scenario_.model.has_value(), "/model: required by the analytic cost (--model)");
      require(scenario_.cluster.has_value(), "/cluster: required by the analytic cost (--cluster)");
      cost_ = std::make_unique<AnalyticCost>(*scenario_.model, scenario_.training, stages_, *scenario_.cluster,
                                             scenario_.software);
      return;
    case CostKind::fitted: {
      require(scenario_.model.has_value(),
              "/model: required by the fitted cost: it tells the layers of a stage (--model)");
      std::unique_ptr<const CostModel> rest;
      if (scenario_.cluster) {
        rest = std::make_unique<AnalyticCost>(*scenario_.model, scenario_.training, stages_, *scenario_.cluster,
                                              scenario_.software);
      }
      cost_ = std::make_unique<FittedCost>(read_cost_table(scenario_.cost_file), scenario_.training, stages_,
                                           std::move(rest));
      return;
    }
  }
}

LoweringOptions Setup::lowering_options() const {
  const Training& training = scenario_.training;
  LoweringOptions options{.footprint = footprint_.get()};
  if (!scenario_.model) return options;
  const bool experts = scenario_.model->has_experts();
  options.data_parallel = std::max(training.data_ranks(), experts ? training.expert_data_ranks() : 1);
  options.overlap_grad_reduce = training.overlap_grad_reduce;
  options.gather_parameters = training.distributed_optimizer;
  options.blocking_transfers = scenario_.cost != CostKind::uniform && scenario_.blocks_transfers();
  options.tied_embedding = scenario_.model->tied_embeddings;
  const bool flush = schedule_.weight_policy() == WeightPolicy::flush;
  options.global_norm = scenario_.clip_gradients && flush && scenario_.cost != CostKind::uniform;
  options.recompute = training.recompute == Training::Recompute::full ||
                      (training.recompute == Training::Recompute::selective && !training.flash_attention);
  return options;
}

}  // namespace sluice
