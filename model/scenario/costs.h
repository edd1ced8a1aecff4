#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/blocks/stage.h"
#include "model/cost/cost_model.h"
#include "model/cost/fitted.h"
#include "model/cost/kept_prices.h"
#include "model/graph/lowering.h"
#include "model/graph/offload.h"
#include "model/scenario/scenario.h"
#include "model/schedule/schedule.h"

namespace sluice::model {

// Returns the stages into which a model is cut for a schedule (split_layers). Where every rank of the last stage also
// has the first one, the head reads that embedding and has no copy. Throws InputError.
std::vector<StageContents> split_stages(const Model& model, const Schedule& schedule,
                                        std::span<const int> explicit_layers, int first_layers, int last_layers,
                                        int mtp_stage = kLastStage, std::span<const Predictions> predictions = {});

// The footprint and the cost model of a scenario, for a schedule. Ranks, microbatches and shapes are those of the
// schedule.
class ScenarioCosts {
 public:
  // Throws InputError naming the scenario's field.
  ScenarioCosts(Scenario scenario, const Schedule& schedule);
  // The same for a schedule that is only a part of one with `microbatches`.
  ScenarioCosts(Scenario scenario, const Schedule& schedule, int microbatches);
  // The same for stages with these contents, which need not add up to the model. Precondition: the scenario has one.
  ScenarioCosts(Scenario scenario, const Schedule& schedule, const std::vector<StageContents>& stages);
  // The same, for one thread, with the footprint and the cost model of `like`, if not null, where both have the
  // analytic cost of the same training and stages; analytic costs take times from `prices` and add to them.
  // Precondition: both are of the same model, cluster and software.
  ScenarioCosts(Scenario scenario, const Schedule& schedule, const ScenarioCosts* like, PriceStore& prices);
  bool shares_costs(const ScenarioCosts& other) const { return cost_ == other.cost_; }

  const Scenario& scenario() const { return scenario_; }  // with the schedule's training.pp and microbatches
  const std::vector<StageContents>& stages() const { return stages_; }  // empty without a model
  const Footprint* footprint() const { return footprint_.get(); }       // null without a model
  const CostModel& cost() const { return *cost_; }
  LoweringOptions lowering_options(WeightPolicy policy) const;

 private:
  ScenarioCosts(Scenario scenario, const Schedule& schedule, int microbatches, const std::vector<StageContents>* stages,
                const ScenarioCosts* like, PriceStore* prices = nullptr);
  std::int64_t library_workspace() const;
  void split_model(const Schedule& schedule, const std::vector<StageContents>* stages);
  void make_footprint(const Schedule& schedule, const std::optional<CostTable>& table);
  void make_cost(const Schedule& schedule, std::optional<CostTable> table, PriceStore* prices);
  void make_offload(const Schedule& schedule);
  ParameterCounts count_parameters(const Schedule& schedule) const;
  // Tokens of the microbatch that the times of the uniform cost are of; 0: of any.
  std::int64_t timed_tokens() const;

  Scenario scenario_;
  std::vector<StageContents> stages_;
  std::shared_ptr<const Footprint> footprint_;
  std::shared_ptr<const CostModel> cost_;
  std::optional<OffloadOptions> offload_;
};

}  // namespace sluice::model
